"""State on the host that captured code reads and that has changed by the replay.

Python numbers and flags, hyperparameters of optimizers, and the mode of modules: a graph keeps the
values of its capture. Functions that the capture calls are read as a whole (``host_reads``). Of the
functions that were running when it began, the lines of the capture count, and their locals do too.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from cgtool.detectors.preflight import frozen_by
from cgtool.detectors.reporting import Detector, on
from cgtool.detectors.script.inputs import ModuleChanges
from cgtool.findings import code
from cgtool.model.capture import Frame
from cgtool.model.finding import ERROR
from cgtool.observe.call_sites import constructed_at
from cgtool.observe.frames import frames_of, is_internal, line_of
from cgtool.observe.host_reads import HostReads, Snapshot, Watched
from cgtool.observe.script import events
from cgtool.observe.script.names import CapturedName, captured_names, locals_of, stack_of
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.source import Use
from cgtool.torch_compat.private import Dropout, pytree

CONTROL_FLOW_FROZEN = code("control-flow-frozen")
CPU_STATE_STEP_COUNTER = code("cpu-state-step-counter")
PYTHON_SCALAR_FROZEN = code("python-scalar-frozen")
TRAIN_EVAL_TOGGLE = code("train-eval-toggle")

_FULL_CHECKS = 32
"""Replays of a graph that are all looked at; of those after, one in as many."""


@dataclass
class _CaptureReads:
    """What one capture read."""

    reads: HostReads = field(default_factory=HostReads)
    locals: list[CapturedName] = field(default_factory=list)
    snapshot: Snapshot = field(default_factory=dict)
    numbers: dict[tuple[str, str], set[Any]] = field(default_factory=dict)
    """Passed to ops, by the file and the function that called them."""
    chains: dict[tuple[str, int], tuple[Frame, ...]] = field(default_factory=dict)
    """By the file and line that called an op."""

    def passed(self, value: Any, frame: Frame) -> bool:
        """The function of the frame passed the value to an op."""
        return value in self.numbers.get((frame.file, frame.function), ())


class Numbers(Detector):
    """Numbers and flags of Python that captured code reads."""

    phase = "replay"

    def start(self) -> None:
        self._captures: dict[int, _CaptureReads] = {}
        """By number of the graph."""

    @on(events.CaptureBegan)
    def _begin(self, event: events.CaptureBegan) -> None:
        capture = self._captures[event.graph.number] = _CaptureReads()
        frame = self.script.frame()
        if frame is not None:
            capture.locals = list(captured_names(frame, event.graph.lines))

    @on(events.OpCaptured)
    def _note_reads(self, event: events.OpCaptured) -> None:
        capture = self._captures[event.graph.number]
        frame = self.script.frame()
        while frame is not None and id(frame) not in event.graph.outer_frames:
            if not is_internal(frame.f_code):
                capture.reads.add_frame(frame)
                locals_of(frame)
            frame = frame.f_back
        call = event.op.call
        if call is None:
            return
        numbers = {
            leaf
            for leaf in pytree.tree_leaves((event.op.args, event.op.kwargs))
            if type(leaf) in (int, float, bool)
        }
        for site in call.chain[:3]:
            function = site[0].co_filename, site[0].co_qualname
            capture.numbers.setdefault(function, set()).update(numbers)
        for site in call.chain[:1]:
            line = site[0].co_filename, line_of(site)
            capture.chains.setdefault(line, frames_of(call.chain))

    @on(events.CaptureEnded)
    def _end(self, event: events.CaptureEnded) -> None:
        capture = self._captures[event.graph.number]
        capture.snapshot = capture.reads.snapshot()
        for watched in capture.reads.watched:
            if watched.use.written and not watched.use.tested:
                self._look_at_counter(capture, watched)
        # What leads to tensors would keep them alive.
        numbers = HostReads()
        numbers.watched = [
            watched
            for index, watched in enumerate(capture.reads.watched)
            if index in capture.snapshot and capture.snapshot[index].kind == "number"
        ]
        capture.reads, capture.snapshot = numbers, numbers.snapshot()

    def _look_at_counter(self, capture: _CaptureReads, written: Watched) -> None:
        """A number that the captured code changes itself, and that one of its ops reads."""
        text, line = written.use.text, written.frame
        reads = [
            watched
            for watched in capture.reads.watched
            if watched.use.text == text and not watched.use.written
        ]
        reads_on_line = any(
            (watched.frame.file, watched.frame.line) == (line.file, line.line) for watched in reads
        )
        read_by_op = any(
            watched.owner == written.owner
            and (watched.frame.file, watched.frame.line) in capture.chains
            for watched in reads
        )
        value = capture.snapshot.get(capture.reads.watched.index(written))
        if reads_on_line and read_by_op and value is not None and value.kind == "number":
            self.report(
                CPU_STATE_STEP_COUNTER,
                f"`{text}` changes on the host with every call, and a replay does not change it",
                (line,),
                evidence=(f"{value.shown} in the graph",),
                phase="capture",
            )

    @on(events.ReplayBegins)
    def _compare_with_capture(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        capture = self._captures.get(graph.number)
        if capture is None or (graph.replays >= _FULL_CHECKS and graph.replays % _FULL_CHECKS):
            return
        if any(other is not graph and other.frames == graph.frames for other in self.script.graphs):
            # One graph for each value: what has changed since is the choice between them.
            return
        for change in capture.reads.changes(capture.snapshot, capture.reads.snapshot()):
            use, before, after = change.watched.use, change.before, change.after
            if use.text.endswith(".training") or use.written:
                continue
            if before.kind == "number" and after.kind == "number":
                frame = change.watched.frame
                if use.tested or capture.passed(before.content, frame):
                    self._report(capture, use, frame, before.shown, after.shown)
        if not capture.locals:
            return
        stack = stack_of(self.script.frame())
        for name in capture.locals:
            now, before, frame = name.look_up(stack), name.value, name.place
            if type(now) is not type(before) or now == before:
                continue
            # An op on the line may get a number that is computed from this one.
            calls_op = (frame.file, frame.line) in capture.chains
            if name.use.tested or calls_op or capture.passed(before, frame):
                self._report(capture, name.use, frame, repr(before), repr(now))

    def _report(
        self, capture: _CaptureReads, use: Use, frame: Frame, before: str, now: str
    ) -> None:
        frames = capture.chains.get((frame.file, frame.line), (frame,))
        evidence = (f"{use.text} was {before} when captured, and is {now} now",)
        if use.tested:
            self.report(
                CONTROL_FLOW_FROZEN,
                f"`{use.text}` decides which ops run here and has changed since the capture; the "
                "replay repeats the captured ops",
                frames if frames[0] == frame else (frame,),
                evidence=evidence,
            )
        else:
            self.report(
                PYTHON_SCALAR_FROZEN,
                f"`{use.text}` has changed since the capture; the replay uses the old value",
                frames,
                evidence=evidence,
            )


_Values = dict[tuple[int, str], float]
"""Hyperparameters by index of the parameter group and name."""


def _hyperparameters(optimizer: Optimizer) -> _Values:
    return {
        (index, name): value
        for index, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if type(value) in (int, float, bool)
    }


class Steps(Detector):
    """A captured ``Optimizer.step`` whose learning rate, or another number, has changed since."""

    def start(self) -> None:
        self._steps: list[tuple[WatchedGraph, weakref.ref[Optimizer], _Values, tuple[Frame, ...]]]
        self._steps = []

    @on(events.OptimizerSteps)
    def _note_step(self, event: events.OptimizerSteps) -> None:
        graph, optimizer = self.script.capture, event.optimizer
        if graph is not None:
            values, place = _hyperparameters(optimizer), self.script.place()
            self._steps.append((graph, weakref.ref(optimizer), values, place))

    @on(events.ReplayBegins)
    def _compare_with_capture(self, event: events.ReplayBegins) -> None:
        for graph, reference, before, frames in self._steps:
            optimizer = reference()
            if optimizer is None or graph is not event.graph:
                continue
            now = _hyperparameters(optimizer)
            key = next((key for key in before if now.get(key, before[key]) != before[key]), None)
            if key is None:
                continue
            name, kind = key[1], type(optimizer).__name__
            self.report(
                frozen_by(optimizer),
                f"`{name}` of {kind} has changed since the capture; the replay uses the old value",
                constructed_at(optimizer) or frames,
                evidence=(f"{name} was {before[key]} when captured, and is {now[key]} now",),
                severity=ERROR,
                phase="replay",
            )


def _depends_on_mode(module: torch.nn.Module) -> bool:
    """True if ``forward`` of a module looks at ``training``, and it makes a difference."""
    if isinstance(module, Dropout):
        return bool(module.p > 0)
    forward = getattr(type(module).forward, "__code__", None)
    if forward is None:
        return False
    if "training" in forward.co_names:
        return True
    # Recurrent modules pass it to their kernel only where they have dropout.
    return isinstance(module, torch.nn.RNNBase) and module.dropout > 0


class Modes(Detector):
    """``train()`` or ``eval()`` after the capture."""

    def start(self) -> None:
        self._training: dict[int, dict[weakref.ref[torch.nn.Module], bool]] = {}
        """By number of the graph: of the modules that ran in the capture."""
        self._toggled = ModuleChanges()

    @on(events.ModuleChanged)
    def _module_changed(self, event: events.ModuleChanged) -> None:
        if event.is_train:
            self._toggled.note(event.module, self.script)

    @on(events.ModuleRuns)
    def _note_mode(self, event: events.ModuleRuns) -> None:
        graph, module = self.script.capture, event.module
        if graph is not None and _depends_on_mode(module):
            self._training.setdefault(graph.number, {})[weakref.ref(module)] = module.training

    @on(events.ReplayBegins)
    def _compare_with_capture(self, event: events.ReplayBegins) -> None:
        for reference, training in self._training.get(event.graph.number, {}).items():
            module = reference()
            if module is None or module.training == training:
                continue
            mode = "train()" if training else "eval()"
            self.report(
                TRAIN_EVAL_TOGGLE,
                f"{type(module).__name__} was captured in `{mode}`; the replay stays in that mode",
                self._toggled.since(module, event.graph) or None,
                phase="replay",
            )
            return
