"""State that captured code makes at its first call: each replay makes it anew.

Code that makes what it needs where it first needs it (moments of an optimizer, parameters of a lazy
module, ``if self.average is None:``) does so in the capture if nothing called it before. Eager code
goes on with what its first call has made; a replay begins again.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from cgtool.detectors.frozen_values import CONTROL_FLOW_FROZEN, FrozenValues
from cgtool.detectors.reporting import Detector
from cgtool.model.capture import Frames
from cgtool.observe.effects import overwrites
from cgtool.observe.host_reads import NameIn, Watched
from cgtool.observe.lookup import resolve
from cgtool.observe.script import events
from cgtool.observe.script.names import name_in, stack_of
from cgtool.observe.script.state import Access, ExternalUse, WatchedGraph
from cgtool.observe.tensors import key_of, tensors_in
from cgtool.torch_compat.private import no_torch_function

_WARM_UP = "run the code once, as a warm-up, before the capture; a step with its optimizer"


class FirstSteps(Detector):
    """Optimizers that take their first step in a capture, and lazy modules that first run there."""

    phase = "capture"

    def start(self) -> None:
        self._steps: dict[weakref.ref[torch.optim.Optimizer], Frames] = {}
        """Optimizers without state for some parameter when they stepped in the capture."""
        self._found: defaultdict[WatchedGraph, list[tuple[str, Frames]]] = defaultdict(list)

    def on_capture_began(self, _event: events.CaptureBegan) -> None:
        self._steps = {}

    def on_module_runs(self, event: events.ModuleRuns) -> None:
        module, graph = event.module, self.script.capture
        if graph is None or not isinstance(module, LazyModuleMixin):
            return
        if module.has_uninitialized_params():
            reason = "first runs in this capture: each replay draws its parameters anew"
            self._found[graph].append((f"{type(module).__name__} {reason}", self.script.place()))

    def on_optimizer_steps(self, event: events.OptimizerSteps) -> None:
        if self.script.capture is None:
            return
        with no_torch_function():
            if any(parameter.grad is not None for parameter in _without_state(event.optimizer)):
                self._steps.setdefault(weakref.ref(event.optimizer), self.script.place())

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        for reference, place in self._steps.items():
            optimizer = reference()
            states = [] if optimizer is None else list(optimizer.state.values())
            if any(key_of(tensor) in event.graph.allocated for tensor in tensors_in(states)):
                reason = "takes its first step in this capture: each replay is a first step, with "
                reason = f"{type(optimizer).__name__} {reason}new moments"
                self._found[event.graph].append((reason, place))

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        # The first replay is the first call.
        if event.graph.replays and event.graph in self._found:
            for reason, place in self._found.pop(event.graph):
                self.report(CONTROL_FLOW_FROZEN, reason, place, fix=_WARM_UP)


def _without_state(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return [each for each in parameters if not optimizer.state.get(each)]


class _Effect(NamedTuple):
    """What one captured op reads and writes, by the keys of the storages."""

    read: tuple[int, ...]
    written: tuple[int, ...]
    filled: tuple[int, ...]
    """What it overwrites in full."""
    keeps: bool
    """What it writes in place depends on what was there, or on a place that is not known."""
    random: bool


class _Made(NamedTuple):
    """A place where captured code has put a tensor because there was none."""

    watched: Watched
    tensors: frozenset[int]
    read_at: Frames
    sources: frozenset[int]
    """Buffers from outside that its value comes from."""
    differs: bool
    """A replay makes another one for certain."""


class FirstCalls:
    """Names of captured code where something was made for later calls."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._effects: list[_Effect] = []
        """Of the capture in progress, in order."""
        self._made: dict[int, list[_Made]] = {}
        """By number of the graph."""

    def begin(self) -> None:
        self._effects = []

    def note(self, event: events.OpCaptured) -> None:
        op, allocated = event.op, event.graph.allocated
        written, keeps = _keys(op.written), not overwrites(op.name)
        sizes = zip(written, op.written, strict=False)
        filled = (
            key for key, each in sizes if key in allocated and each.nbytes == allocated[key].bytes
        )
        self._effects.append(
            _Effect(
                _keys(op.tensors),
                (*written, *_keys(tensors_in(event.result))),
                () if keeps else tuple(filled),
                bool(written) and keeps,
                torch.Tag.nondeterministic_seeded in getattr(op.func, "tags", ()),
            )
        )

    def captured(self, graph: WatchedGraph, flows: FrozenValues) -> None:
        effects, self._effects = self._effects, []
        self._made[graph.number] = [
            _Made(
                without_frame(watched), tensors, (watched.frame,), *_origin(tensors, effects, graph)
            )
            for watched in flows.reads.made(flows.reaching())
            if (tensors := _tensors_at(watched) & frozenset(graph.allocated))
        ]

    def replay_begins(self, graph: WatchedGraph) -> None:
        """Before the second replay: the first is the first call."""
        last = graph.last_replay
        if last is None:
            return
        for made in self._made.get(graph.number, ()):
            sources = [graph.external[key] for key in made.sources]
            changes = made.differs or any(_is_changed(source, last) for source in sources)
            # The script may take it away, for the next call to make another.
            if changes and made.tensors <= _tensors_at(made.watched):
                self._report(
                    CONTROL_FLOW_FROZEN,
                    f"`{made.watched.use.text}` is made in this capture, because it was not there "
                    "before: each replay makes it anew",
                    made.read_at,
                    fix=_WARM_UP,
                )


def _is_changed(use: ExternalUse, last: Access) -> bool:
    """Whether a graph changes what it reads, or something has changed it since the last replay."""
    write = use.buffer.last_write
    return use.written or (write is not None and write.time > last.time)


def _keys(tensors: Any) -> tuple[int, ...]:
    return tuple(key for tensor in tensors if (key := key_of(tensor)) is not None)


def _tensors_at(watched: Watched) -> frozenset[int]:
    value = resolve(watched.root(), watched.use.steps)
    return frozenset(_keys(tensors_in(value)))


def _origin(
    tensors: frozenset[int], effects: list[_Effect], graph: WatchedGraph
) -> tuple[frozenset[int], bool]:
    """The outside buffers that some tensors are made of, and whether each replay makes others even
    if those stay the same: they are drawn, or something is added to them."""
    needed, differs = set(tensors), False
    for effect in reversed(effects):
        if needed.isdisjoint(effect.written):
            continue
        if not tensors.isdisjoint(effect.filled):
            # Memory to work in: each call fills it first.
            return frozenset(), False
        is_update = not tensors.isdisjoint(effect.read)
        differs |= effect.random or (effect.keeps and is_update)
        if not is_update:
            needed.update(effect.read)
    return frozenset(needed & graph.external.keys()), differs


def without_frame(watched: Watched) -> Watched:
    """A local name of the function that captures, without its frame, which would keep alive what
    the script deletes."""
    if not isinstance(watched.root, NameIn):
        return watched
    look_up = name_in(watched.root.frame, watched.root.name, has_parts=bool(watched.use.steps))
    return dataclasses.replace(watched, root=lambda: look_up(stack_of(sys._getframe(1))))
