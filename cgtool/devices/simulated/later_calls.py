"""A call of captured code at the time of each replay.

A replay repeats what was captured, where eager code would run with what Python holds by then: lists
that have grown, attributes and hooks that were exchanged, caches that were cleared. So the code of
a capture is run again as a replay begins, in a process that is forked for it, from the same memory,
and what it computes is compared with that replay. The script and its own replays are not touched.

The names in the captured lines themselves keep the values of the capture, because a program may use
them for the next graph; so do the modes of PyTorch and of modules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import msgspec
import torch

from cgtool.analysis.reports import explain_findings, is_hazard
from cgtool.detectors.frozen_values import CONTROL_FLOW_FROZEN
from cgtool.devices.simulated.calls_again import (
    Answer,
    CallsAgain,
    Code,
    add_what_is_new,
)
from cgtool.devices.simulated.forked import ForkedProcess, can_fork
from cgtool.devices.simulated.live_objects import LiveObjects, at_end_of
from cgtool.devices.simulated.op_differences import Texts
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.model import clock
from cgtool.model.capture import Frames
from cgtool.model.finding import Finding
from cgtool.observe.frames import callers, is_internal, line_of, locals_of
from cgtool.observe.lookup import MISSING, attribute_of
from cgtool.observe.script import events
from cgtool.observe.script.blocks import Block, LaterBlock, Outputs, block_of
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import GraphedCallable, WatchedGraph
from cgtool.observe.source import functions_of
from cgtool.torch_compat.private import pytree

_MOST_GRAPHS = 32
_FIRST = 16
"""Replays of a graph of which each is looked at."""
_MOST_CALLS = 96
"""Of all graphs of a script."""
_SECONDS = 10.0
"""For one of them."""
_MOST_SECONDS = 20.0
"""For all of them."""


_MODES = (
    *("torch.autograd.", "torch.amp.", "torch.cuda", "torch.profiler", "cgtool."),
    *("contextlib", "threading", "_thread"),
)
"""Modules of context managers around a capture that the code does not miss later."""
_TEXTS = Texts(
    compared="run just before the replay{}, the captured code gives other values",
    again="when the code is run at the time of a replay",
    repeated="the capture",
    fixes={
        CONTROL_FLOW_FROZEN: "capture again when what decides has changed, capture one graph for "
        "each branch, or select on the device",
    },
)


class LaterCalls:
    """Calls what a script captures again as its replays begin."""

    def __init__(self, script: ObservedScript, device: ScriptDevice) -> None:
        self._script, self._device = script, device
        self._block: Block | None = None
        """Of the capture in progress."""
        self._codes: dict[WatchedGraph, tuple[Code, Modes]] = {}
        self._running: tuple[WatchedGraph, ForkedProcess] | None = None
        self._answers: dict[WatchedGraph, Finding] = {}
        self._early: dict[WatchedGraph, Answer] = {}
        """Graphs that read another tensor at their first replay than their code would. The next
        call decides: the script may copy the results of each replay to where the graph reads."""
        self._at_once: set[Frames] = set()
        """Where graphs were captured that differed at their first replay."""
        self._calls: dict[WatchedGraph, int] = {}
        """How often the code of each graph was called."""
        self._last: dict[WatchedGraph, int] = {}
        """The number of the last of these calls, among those of all graphs."""
        self._first: dict[WatchedGraph, tuple[Code, Modes]] = {}
        """The code of graphs of which a call differed at their first replay."""
        self._undone: set[WatchedGraph] = set()
        """Graphs that such a call does not judge: it finds in a container what the capture has put
        there, and the script takes that out before the next call."""
        self._waited = 0.0
        script.subscribe(events.CaptureBegan, self._began)
        script.subscribe(events.CaptureEnded, self._ended)
        script.subscribe(events.CaptureFailed, self._failed)
        script.subscribe(events.GraphDropped, self._dropped)
        script.subscribe(events.FillingUndone, self._filling_undone)
        script.subscribe(events.ReplayBegins, self._replay_begins)

    def _began(self, event: events.CaptureBegan) -> None:
        frame = self._script.frame()
        if event.graph.callable is None and self._may_call(frame):
            self._block = block_of(frame)

    def _may_call(self, frame: FrameType | None) -> bool:
        return len(self._codes) < _MOST_GRAPHS and not _is_in_context(frame)

    def _failed(self, _event: events.CaptureFailed) -> None:
        self._block = None

    def _ended(self, event: events.CaptureEnded) -> None:
        block, self._block = self._block, None
        later: Code | None = None
        if block is not None and block.is_ready():
            later = block.later()
            for other, _ in self._codes.values():
                if isinstance(other, LaterBlock):
                    other.reused |= block.used
        elif (graphed := event.graph.callable) is not None and graphed.function is not None:
            later = _LaterCallable(graphed) if self._may_call(self._script.frame()) else None
        if later is not None:
            self._codes[event.graph] = later, Modes(at_end_of(event.graph))

    def _dropped(self, event: events.GraphDropped) -> None:
        self._codes.pop(event.graph, None)

    def _replay_begins(self, event: events.ReplayBegins) -> None:
        self._wait()
        code, calls = self._codes.get(event.graph), self._calls.get(event.graph, 0)
        # The later ones further and further apart.
        is_due = event.graph.replays >= calls * 1.25 ** max(0, calls - _FIRST)
        if code is None or not is_due or not can_fork():
            return
        if sum(self._calls.values()) >= _MOST_CALLS or self._waited > _MOST_SECONDS:
            return
        self._calls[event.graph] = calls + 1
        self._last[event.graph] = sum(self._calls.values())
        answer = partial(_answer, self._script, self._device, event.graph, *code)
        self._running = event.graph, ForkedProcess(answer, 2 * _SECONDS)

    def _wait(self) -> None:
        if self._running is None:
            return
        graph, process = self._running
        self._running, since = None, clock.monotonic()
        answer = process.answer(_SECONDS)
        self._waited += clock.monotonic() - since
        found = msgspec.msgpack.decode(answer, type=Answer) if answer else None
        is_first = self._calls[graph] == 1
        if is_first and found is not None:
            if graph in self._undone:
                return
            if found.key is not None:
                self._early[graph] = found
                return
        early = self._early.pop(graph, None)
        found = found or early
        if found is not None and not _is_written(graph, found.key):
            self._differs(graph, found, at_once=is_first or early is not None)

    def _differs(self, graph: WatchedGraph, found: Answer, *, at_once: bool) -> None:
        self._answers[graph] = found.finding
        if at_once:
            self._at_once.add(graph.frames)
        is_alone = len(self._script.graphs_by_place()[graph.frames]) == 1
        if found.key is not None and is_alone:
            self._script.publish(events.InputReplaced(graph, found.key))
        code = self._codes.pop(graph, None)
        if at_once and code is not None:
            self._first[graph] = code

    def _filling_undone(self, event: events.FillingUndone) -> None:
        graph = event.graph
        if graph not in self._undone:
            self._undone.add(graph)
            self._early.pop(graph, None)
            if graph in self._first:
                self._codes[graph] = self._first.pop(graph)
                self._answers.pop(graph)
                self._at_once.discard(graph.frames)

    def report(self) -> None:
        """The script has ended. Nothing is reported beside what is known to differ at replays.
        Graphs that the same line captures may be meant for different states: one of them is
        reported if none differed at its first replay, and none was right after one had differed."""
        self._wait()
        for graph, early in self._early.items():
            if not _is_written(graph, early.key):
                self._differs(graph, early, at_once=True)
        log = self._device.findings
        if any(each.phase == "replay" for each in explain_findings(log) if is_hazard(each)):
            return
        by_place = self._script.graphs_by_place()
        places = {graph.frames: finding for graph, finding in reversed(self._answers.items())}
        first: dict[Frames, int] = {}
        for graph in self._answers:
            first.setdefault(graph.frames, self._last[graph])
        right = {
            graph.frames
            for graph, last in self._last.items()
            if graph not in self._answers and last > first.get(graph.frames, last)
        }
        found = [
            finding
            for place, finding in places.items()
            if place not in right and (len(by_place[place]) == 1 or place not in self._at_once)
        ]
        add_what_is_new(log, reversed(found))


def _answer(
    script: ObservedScript,
    device: ScriptDevice,
    graph: WatchedGraph,
    code: Code,
    modes: Modes,
) -> bytes:
    """In the forked process: the finding, if there is one."""
    torch.set_num_threads(1)  # those of the script are not here
    script.closed = True
    calls = CallsAgain(script, device, graph)
    if not calls.is_small:
        return b""
    modes.restore()
    at = "".join(f" at line {each.line}" for each in script.place()[:1])
    texts = _TEXTS._replace(compared=_TEXTS.compared.format(at))
    found = calls.compared(code, texts, modes.objects.alive())
    return b"" if found is None else msgspec.msgpack.encode(found)


def _is_written(graph: WatchedGraph, key: int | None) -> bool:
    """Whether a tensor that a graph reads was last written by something else: the script gives it
    its values, also where the code would have another tensor by now."""
    use = None if key is None else graph.external.get(key)
    write = None if use is None else use.buffer.last_write
    return write is not None and write.time > graph.began and write.graph is not graph


@dataclass
class _LaterCallable:
    """A callable of ``make_graphed_callables``, which has its arguments in its samples."""

    graphed: GraphedCallable
    function = ""

    def run(self) -> None:
        samples = [reference() for reference in self.graphed.samples]
        function = self.graphed.function and self.graphed.function()
        if function is None or function is MISSING or any(each is None for each in samples):
            raise LookupError
        with torch.enable_grad():
            function(*pytree.tree_unflatten(samples, self.graphed.structure))

    def outputs(self) -> Outputs:
        return iter(())

    assigned = outputs


def _autocast() -> list[tuple[str, bool, torch.dtype]]:
    return [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
    ]


@dataclass
class Modes:
    """The modes of PyTorch and of modules at the end of a capture."""

    objects: LiveObjects
    is_grad: bool = field(default_factory=torch.is_grad_enabled)
    is_inference: bool = field(default_factory=torch.is_inference_mode_enabled)
    autocast: list[tuple[str, bool, torch.dtype]] = field(default_factory=_autocast)
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)

    def restore(self) -> None:
        torch.set_grad_enabled(self.is_grad)
        torch.inference_mode(self.is_inference).__enter__()
        for kind, is_on, dtype in self.autocast:
            torch.set_autocast_enabled(kind, is_on)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_default_dtype(self.dtype)
        for reference, is_training in self.objects.training:
            module = reference()
            if module is not None:
                module.__dict__["training"] = is_training


def _is_in_context(frame: FrameType | None) -> bool:
    """Whether a context manager is entered around a capture that sets something else than what
    ``Modes`` restores: that may be meant for the capture alone."""
    for each in callers(frame):
        if not is_internal(each.f_code):
            if any(not _is_restored(item.context_expr, each) for item in _entered(each)):
                return True
            if each.f_code.co_name == "<module>":
                break
    return False


def _entered(frame: FrameType) -> Iterator[ast.withitem]:
    line = line_of((frame.f_code, frame.f_lasti))
    for function in functions_of(frame.f_code):
        for node in ast.walk(function):
            if not isinstance(node, ast.With | ast.AsyncWith):
                continue
            if node.lineno <= line <= (node.end_lineno or 0):
                yield from node.items


def _is_restored(node: ast.expr, frame: FrameType) -> bool:
    if isinstance(node, ast.Call):
        node = node.func
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return False
    value: Any = {**frame.f_globals, **locals_of(frame)}.get(node.id, MISSING)
    for name in names:
        value = attribute_of(value, name)
    if not isinstance(value, type) and not hasattr(value, "__qualname__"):
        value = type(value)
    module = str(getattr(value, "__module__", ""))
    return module.startswith(_MODES)
