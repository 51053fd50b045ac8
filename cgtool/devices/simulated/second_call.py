"""A second call of captured code against a second replay.

The first replay of a graph is the call that was captured. From the second on, a replay repeats that
call, where eager code would run again: with the moments that an optimizer made in its first step,
the caches that it filled, the numbers that it counted. So the code of a capture is run once more
after one replay, in a process that is forked for it, and what it computes is compared with a second
replay. What the code changes on the host in both calls is compared too, and followed to the ops
that get it. The script and its own replays are not touched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial

import msgspec
import torch

from cgtool.analysis.reports import explain_findings, is_hazard
from cgtool.detectors.frozen_values import CONTROL_FLOW_FROZEN
from cgtool.devices.simulated.calls_again import (
    Answer,
    CallsAgain,
    add_what_is_new,
    is_fed,
    steps_of,
)
from cgtool.devices.simulated.forked import ForkedProcess, can_fork
from cgtool.devices.simulated.live_objects import LiveObjects, at_end_of
from cgtool.devices.simulated.op_differences import Texts, signature
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.model.capture import Frames
from cgtool.model.finding import Code as FindingCode
from cgtool.model.finding import Finding
from cgtool.observe.script import events
from cgtool.observe.script.blocks import Block, block_of
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import WatchedGraph

_MOST = 16
"""Graphs of a script of which this is tried."""
_MOST_OF_LINE = 3
"""Of those that one line captures."""
_SECONDS = 20.0
"""For one of them."""


_TEXTS = Texts(
    compared="a second call of the captured code gives other values than a second replay",
    again="when the code is called again",
    repeated="the first call",
    fixes={
        CONTROL_FLOW_FROZEN: "if only its first call differs, run the code once, as a warm-up, "
        "before the capture; if a value of the host decides, select on the device, or capture one "
        "graph for each branch",
    },
)


class _Answer(msgspec.Struct):
    """Of a process that has called the code of a graph again."""

    differing: Answer | None
    """What the second call and a second replay compute."""
    changing: list[Finding]
    """On the host: what both calls have changed, and ops get."""


class SecondCalls:
    """Tries a second call of what a script captures.

    Some graphs of each line, and only where Python's source has the captured statements.
    """

    def __init__(self, script: ObservedScript, device: ScriptDevice) -> None:
        self._script, self._device = script, device
        self._block: Block | None = None
        """Of the capture in progress."""
        self._tried: dict[Frames, list[WatchedGraph]] = {}
        """By place of the capture."""
        self._ops: dict[WatchedGraph, bytes] = {}
        """What each graph runs (``signature``)."""
        self._running: tuple[WatchedGraph, ForkedProcess] | None = None
        """A graph, and the process that calls its code again."""
        self._answers: list[tuple[WatchedGraph, _Answer]] = []
        script.subscribe(events.CaptureBegan, self._began)
        # Where the values of the capture go is known by then.
        script.subscribe(events.CaptureEnded, self._ended, last=True)
        self._undone: set[WatchedGraph] = set()
        """Those whose second call begins with less than the capture has left."""
        script.subscribe(events.CaptureFailed, self._failed)
        script.subscribe(events.FillingUndone, lambda event: self._undone.add(event.graph))

    def __enter__(self) -> SecondCalls:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._wait(0.0)

    def _began(self, event: events.CaptureBegan) -> None:
        self._block, tried = None, self._tried.get(event.graph.frames, [])
        if len(tried) < _MOST_OF_LINE and sum(map(len, self._tried.values())) < _MOST:
            self._block = block_of(self._script.frame())

    def _failed(self, _event: events.CaptureFailed) -> None:
        self._block = None

    def _ended(self, event: events.CaptureEnded) -> None:
        block, self._block = self._block, None
        self._ops[event.graph] = signature(steps_of(event.graph))
        if block is None or not block.is_ready() or not can_fork():
            return
        self._wait(_SECONDS)
        self._tried.setdefault(event.graph.frames, []).append(event.graph)
        # Here and not in the process, which would copy each object that it looks at.
        objects = at_end_of(event.graph)
        answer = partial(_answer, self._script, self._device, event.graph, block, objects)
        self._running = event.graph, ForkedProcess(answer, 2 * _SECONDS)

    def _wait(self, seconds: float) -> None:
        """For the process that runs; it is ended if it takes longer."""
        if self._running is not None:
            graph, process = self._running
            self._running = None
            answer = process.answer(seconds)
            if answer:
                found = msgspec.msgpack.decode(answer, type=_Answer)
                self._answers.append((graph, found))

    def report(self) -> None:
        """The script has ended. Graphs that the same line captures may be meant for different
        calls: one of them is reported if each that was tried differs, and none is the second call
        of another one."""
        self._wait(_SECONDS)
        answers = [
            (graph, answer)
            for graph, answer in reversed(self._answers)
            if graph.replays > 1 and graph not in self._undone
        ]
        differing = {graph for graph, answer in self._answers if answer.differing is not None}
        successive = {
            graph.frames
            for graph, answer in self._answers
            if answer.differing is not None and answer.differing.ops in self._others(graph)
        }
        meant = {
            graph.frames
            for graph, _ in self._answers
            if not differing.issuperset(self._tried[graph.frames])
        }
        fed = {
            graph
            for graph, answer in answers
            if answer.differing is not None and is_fed(graph, answer.differing.key, graph.began)
        }
        answers = [
            (graph, answer)
            for graph, answer in answers
            if graph.frames not in successive and graph not in fed
        ]
        found = {
            graph.frames: answer.differing.finding
            for graph, answer in answers
            if answer.differing is not None and graph.frames not in meant
        }
        self._report_changing(answers, found.values())
        add_what_is_new(self._device.findings, reversed(found.values()))

    def _report_changing(
        self, answers: list[tuple[WatchedGraph, _Answer]], differing: Iterable[Finding]
    ) -> None:
        """What ops get of what the code changes, if neither a finding at the same line says so, nor
        one of ``differing`` in the same function."""
        found_before = explain_findings(self._device.findings)
        known = {each.frames[:1] for each in found_before if is_hazard(each)}
        functions = {_function_of(each.frames) for each in differing}
        by_place: defaultdict[tuple[Frames, FindingCode, Frames], dict[WatchedGraph, Finding]]
        by_place = defaultdict(dict)
        for graph, answer in answers:
            for finding in answer.changing:
                by_place[graph.frames, finding.code, finding.frames][graph] = finding
        for (captured_at, _, frames), found in by_place.items():
            others = [each for each in self._tried[captured_at] if each not in found]
            is_known = frames[:1] in known or _function_of(frames) in functions
            if not is_known and not any(_runs(each, frames) for each in others):
                self._device.findings.add(next(iter(found.values())))

    def _others(self, graph: WatchedGraph) -> set[bytes]:
        """What the other graphs of its line run."""
        others = self._script.graphs_by_place()[graph.frames]
        return {self._ops[other] for other in others if other is not graph and other in self._ops}


def _runs(graph: WatchedGraph, frames: Frames) -> bool:
    """Whether ops of a graph are called by the function of a line."""
    function = _function_of(frames)
    chains = (step.call.chain for step in steps_of(graph) if step.call is not None)
    return any(
        (code.co_filename, code.co_qualname) == function for chain in chains for code, _ in chain
    )


def _function_of(frames: Frames) -> tuple[str, str]:
    return (frames[0].file, frames[0].function) if frames else ("", "")


def _answer(
    script: ObservedScript,
    device: ScriptDevice,
    graph: WatchedGraph,
    block: Block,
    objects: LiveObjects,
) -> bytes:
    """In the forked process: the finding, if there is one."""
    torch.set_num_threads(1)  # those of the script are not here
    script.closed = True
    calls = CallsAgain(script, device, graph)
    if not calls.is_small:
        return b""
    calls.replay()
    observed = [begin() for begin in device.findings.around_second_calls]
    differing = calls.compared(block, _TEXTS, objects.alive())
    changing = [] if calls.is_meant else [finding for end in observed for finding in end()]
    if differing is None and not changing:
        return b""
    return msgspec.msgpack.encode(_Answer(differing, changing))
