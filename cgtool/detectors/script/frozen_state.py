"""State on the host that a capture has read, and that is another one at a replay.

A graph keeps what its capture read: numbers, flags and tables of Python by name (``frozen_names``);
layers, hooks and modes of modules, hyperparameters of optimizers, environment variables and
settings of PyTorch (``frozen_objects``). Each of them is a ``Frozen``: what was read, and how to
read it again. Before a replay all are read again; one that has changed is a finding at the line
that changed it, else at the line that read it.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType

import torch
from torch.optim import Optimizer

from cgtool.detectors.frozen_values import CPU_STATE_STEP_COUNTER, FrozenValues
from cgtool.detectors.reporting import Detector
from cgtool.detectors.script.counted import Counts
from cgtool.detectors.script.first_calls import FirstCalls
from cgtool.detectors.script.frozen import Frozen
from cgtool.detectors.script.frozen_flows import CaptureFlows
from cgtool.detectors.script.frozen_names import CONTROL_FLOW_FROZEN, Reads
from cgtool.detectors.script.frozen_objects import (
    autocast,
    flags,
    hyperparameters,
    mode,
    parts,
    settings,
    stepped,
    tensor_hooks,
    variable,
)
from cgtool.detectors.script.histories import Histories
from cgtool.detectors.script.inputs import ModuleChanges
from cgtool.model.capture import Frames
from cgtool.model.finding import Code
from cgtool.observe.frames import line_of
from cgtool.observe.lookup import MISSING
from cgtool.observe.script import events
from cgtool.observe.script.changes import changed_at, ends_block
from cgtool.observe.script.names import Stack, stack_of
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.source import decided_by

_FULL_CHECKS = 256
"""Replays of a graph that are all looked at; of those after, one in as many."""


class HostState(Detector):
    """All that a capture has read on the host, compared before each replay."""

    phase = "replay"

    def start(self) -> None:
        self._toggled = ModuleChanges()
        """Modules whose mode was changed."""
        self._frozen: dict[int, list[Frozen]] = {}
        """By number of the graph."""
        self._changed_at: dict[int, tuple[Frozen, object, Frames]] = {}
        """By id: what differed from the capture at the last replay, its value then, and the line
        that changed it."""
        self._captured: set[tuple[object, object]] = set()
        """Subjects, and the values with which graphs were captured."""
        self._flows, self._counts = CaptureFlows(self.script), Counts(self.script, self.report)
        self._first_calls, self._histories = FirstCalls(self.report), Histories(self.report)
        self._changing: defaultdict[tuple[Code, Frames], list[WatchedGraph]] = defaultdict(list)
        """By code and place: graphs that keep what is another value in every call."""
        self._forget()

    def _forget(self) -> None:
        """Forget what the last capture has read: it refers to tensors, and would keep them
        alive."""
        self._reads = Reads()
        self._casts = False
        """Whether captured code has used autocast itself."""
        self._modules: dict[weakref.ref[torch.nn.Module], Frames] = {}
        """Modules that ran in the capture, and where."""
        self._others: dict[object, tuple[Frozen, ...]] = {}
        """Its environment variables by name, modes by module, and steps by optimizer."""

    def on_capture_began(self, event: events.CaptureBegan) -> None:
        self._forget()
        self._flows.begin(event.graph)
        self._first_calls.begin()

    def on_op_captured(self, event: events.OpCaptured) -> None:
        # On autograd's threads the frames of the call that waits for them.
        own = threading.get_ident() == self.script.capture_thread
        frame = sys._getframe(1) if own else self.script.frame()
        self._reads.note(event.op, frame, event.graph.outer_frames)
        self._flows.note(event.op.call, frame, event.graph)
        self._first_calls.note(event)

    def on_host_draws(self, event: events.HostDraws) -> None:
        self._flows.note_draw(event.call)

    def on_module_runs(self, event: events.ModuleRuns) -> None:
        graph, module = self.script.capture, weakref.ref(event.module)
        place = self._modules.setdefault(module, self.script.place())
        if graph is not None and module not in self._others:
            self._others[module] = tuple(mode(event.module, place, graph, self._toggled))

    def on_module_changed(self, event: events.ModuleChanged) -> None:
        if event.is_train:
            self._toggled.note(event.module, self.script)

    def on_autocast_entered(self, _event: events.AutocastEntered) -> None:
        self._casts |= self.script.capture is not None

    def on_environment_read(self, event: events.EnvironmentRead) -> None:
        place = self.script.place()
        if place and event.name not in self._others:
            self._others[event.name] = (variable(event.name, event.value, place),)

    def on_optimizer_steps(self, event: events.OptimizerSteps) -> None:
        optimizer: weakref.ref[Optimizer] = weakref.ref(event.optimizer)
        if self.script.capture is not None and optimizer not in self._others:
            place = self.script.place()
            self._others[optimizer] = (
                *hyperparameters(event.optimizer, place),
                stepped(event.optimizer, place),
            )

    def on_capture_ends(self, _event: events.CaptureEnds) -> None:
        self._flows.end()

    def on_capture_failed(self, _event: events.CaptureFailed) -> None:
        self._flows.stop()

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        self._flows.stop()
        for place, graphs in self._changing.items():
            # There is a graph for each value, if not for each shape.
            alive = [graph for graph in graphs if graph.replayable]
            if any(
                graph.is_alternative_to(other) and other.shapes == graph.shapes
                for graph, other in itertools.pairwise(alive)
            ):
                self.findings.drop(*place)

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        graph, reads = event.graph, self._reads
        flows = self._flows.judge()
        if flows is not None:
            reads.follow(flows)
            self._report_changing(graph, flows)
            self._counts.captured(graph, flows)
            self._first_calls.captured(graph, flows)
            self._histories.captured(graph, flows)
        replacing = {} if flows is None else flows.second.ran.replacing
        ran = [module for reference in self._modules if (module := reference()) is not None]
        parts = {id(part) for module in ran for part in module.modules()}
        self._frozen[graph.number] = [
            *reads.names(graph.external.keys(), parts),
            *reads.of_another(self.script.frame(), graph.external.keys(), self.script.place),
            *self._captured_parts(graph, replacing),
            *(frozen for others in self._others.values() for frozen in others),
            *settings(graph),
            *tensor_hooks(graph, replacing),
            *(() if self._casts else autocast(graph)),
        ]
        self._captured |= {
            (each.subject, each.before)
            for each in self._frozen[graph.number]
            if each.subject is not None
        }
        self._forget()

    def _report_changing(self, graph: WatchedGraph, flows: FrozenValues) -> None:
        """What is another value in every call."""
        for finding in flows.findings():
            self._changing[finding.code, finding.frames].append(graph)
            self.report(
                finding.code,
                finding.reason,
                finding.frames,
                phase="capture",
                fix=finding.fix,
                evidence=finding.evidence,
                # The capture itself has shown that it changes.
                severity=None if finding.code == CPU_STATE_STEP_COUNTER else finding.severity,
            )

    def _captured_parts(
        self, graph: WatchedGraph, replacing: Mapping[int, CodeType]
    ) -> Iterator[Frozen]:
        backward = any(call.autograd_node for call in graph.record.calls)
        known: set[int] = set()
        graphed = None if graph.callable is None else graph.callable.module()
        for reference, read_at in self._modules.items():
            root = reference()
            for path, module in root.named_modules() if root is not None else ():
                # PyTorch replaces the forward of a graphed module, and calls its hooks.
                if id(module) not in known and module is not graphed:
                    known.add(id(module))
                    name = path.rpartition(".")[2]
                    yield from parts(module, name, read_at, replacing, backward=backward)

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        if graph.replays >= _FULL_CHECKS and graph.replays % _FULL_CHECKS:
            return
        if not graph.replays and graph.callable is None:
            self._frozen.setdefault(graph.number, []).extend(flags(graph))
        is_one_of_several = any(map(graph.is_alternative_to, self.script.graphs))
        stack = stack_of(self.script.frame())
        self._counts.replay_begins(graph, stack)
        self._first_calls.replay_begins(graph)
        self._histories.replay_begins(graph)
        for frozen in list(self._frozen.get(graph.number, ())):
            if is_one_of_several and frozen.chooses_graph:
                continue
            now = frozen.read(stack)
            has_graph = frozen.subject is not None and (frozen.subject, now) in self._captured
            if now is MISSING or now == frozen.before or has_graph:
                continue
            if not (frozen.code == CONTROL_FLOW_FROZEN and _chooses_replay(frozen, stack)):
                self._report(frozen, now, stack, graph)

    def _report(self, frozen: Frozen, now: object, stack: Stack, graph: WatchedGraph) -> None:
        _, known, place = self._changed_at.get(id(frozen), (None, MISSING, ()))
        if known != now or not place:
            place = frozen.changed_at() or changed_at(
                frozen.targets, stack.values(), graph, local_to=frozen.local_to
            )
            self._changed_at[id(frozen)] = frozen, now, place
        if frozen.may_end_with_block and not graph.replays and (not place or ends_block(place)):
            others = self._frozen[graph.number]
            self._frozen[graph.number] = [each for each in others if each is not frozen]
            return
        graph.replaced |= frozen.tensors
        evidence = frozen.evidence(now)
        if place and frozen.read_at:
            line = frozen.read_at[0]
            evidence = (*evidence, f"read at {Path(line.file).name}:{line.line}")
        if frozen.used_at:
            line = frozen.used_at[0]
            evidence = (*evidence, f"used at {Path(line.file).name}:{line.line}")
        if place or frozen.read_at:
            self.report(
                frozen.code,
                frozen.reason,
                place or frozen.read_at,
                evidence=evidence,
                severity=frozen.severity,
                fix=frozen.fix,
            )


def _chooses_replay(frozen: Frozen, stack: Stack) -> bool:
    """Whether the condition that read it decides between the captured code and its replay:
    ``if self.use_graph: self.graph.replay()``."""
    for read in frozen.read_at[:1]:
        for frame in stack.values():
            if (frame.f_code.co_filename, frame.f_code.co_qualname) == (read.file, read.function):
                line = line_of((frame.f_code, frame.f_lasti))
                return any(read.line in lines for lines in decided_by(read.file, line))
    return False
