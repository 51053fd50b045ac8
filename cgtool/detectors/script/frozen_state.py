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
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import CodeType
from typing import NamedTuple

import torch
from msgspec.structs import replace
from torch.optim import Optimizer

from cgtool.detectors.frozen_values import CPU_STATE_STEP_COUNTER, FrozenValues
from cgtool.detectors.generator_states import seeded
from cgtool.detectors.preflight import STEP_OUTSIDE, captured_scheduler, computed_on_host
from cgtool.detectors.reporting import Detector
from cgtool.detectors.script.first_calls import FirstCalls, without_frame
from cgtool.detectors.script.frozen import Frozen
from cgtool.detectors.script.frozen_flows import CaptureFlows, called_again
from cgtool.detectors.script.frozen_names import CONTROL_FLOW_FROZEN, PYTHON_SCALAR_FROZEN, Reads
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
from cgtool.detectors.script.inputs import ModuleChanges
from cgtool.model.capture import Frames
from cgtool.model.finding import Code, Finding
from cgtool.observe.frames import line_of
from cgtool.observe.host_reads import HostReads, Watched
from cgtool.observe.host_values import CONTAINERS
from cgtool.observe.iteration import SchedulerStep
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
        self._computing: dict[int, list[tuple[str, Frames]]] = {}
        """By number of a graph: the reasons why its optimizers would compute other numbers in
        another call, and where they stepped."""
        self._frozen: dict[int, list[Frozen]] = {}
        """By number of the graph."""
        self._changed_at: dict[int, tuple[Frozen, object, Frames]] = {}
        """By id: what differed from the capture at the last replay, its value then, and the line
        that changed it."""
        self._captured: set[tuple[object, object]] = set()
        """Subjects, and the values with which graphs were captured."""
        self._values: defaultdict[tuple[Frames, Hashable], set[Hashable]] = defaultdict(set)
        """By place of the capture, and identity of what it reads: the values."""
        self._flows = CaptureFlows(self.script)
        self._first_calls = FirstCalls(self.report)
        self._filled: dict[int, list[tuple[Watched, int]]] = {}
        """By number of the graph: containers that its code has put something into, and how many
        items they had when the capture ended."""
        self._changing: defaultdict[tuple[Code, Frames], list[_Changing]] = defaultdict(list)
        """By code and place: what is another value in every call, and each graph that keeps it."""
        self._of_values: set[tuple[Code, Frames]] = set()
        """Those of them for whose values there were graphs at the same time."""
        self._forget()
        self._judged: FrozenValues | None = None
        """What the capture has read, until a process is forked that calls its code again."""
        self.findings.around_second_calls.append(self._called_again)
        self.script.subscribe(events.CaptureEnded, self._forget_judged, last=True)

    def _forget_judged(self, _event: events.CaptureEnded) -> None:
        self._judged = None

    def _forget(self) -> None:
        """Forget what the last capture has read: it refers to tensors, and would keep them
        alive."""
        self._reads = Reads()
        self._casts = False
        """Whether captured code has used autocast itself."""
        self._modules: dict[weakref.ref[torch.nn.Module], Frames] = {}
        """Modules that ran in the capture, and where."""
        self._set: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Modules whose mode captured code has set itself."""
        self._others: dict[object, tuple[Frozen, ...]] = {}
        """Its environment variables by name, modes by module, and steps by optimizer."""
        self._stepped: dict[weakref.ref[Optimizer], Frames] = {}
        """Where its optimizers first stepped."""
        self._written: dict[str, Frames] = {}
        """By name of an environment variable: where captured code has set it first."""

    def on_capture_began(self, event: events.CaptureBegan) -> None:
        self._forget()
        self._flows.begin(event.graph)
        self._first_calls.begin()

    def on_op_captured(self, event: events.OpCaptured) -> None:
        # On autograd's threads the frames of the call that waits for them.
        own = threading.get_ident() == self.script.capture_thread
        frame = sys._getframe(1) if own else self.script.frame()
        self._reads.note(event.op, frame, event.graph.outer_frames)
        self._flows.note(event, frame)
        self._first_calls.note(event)

    def on_host_draws(self, event: events.HostDraws) -> None:
        self._flows.note_draw(event)

    def on_module_runs(self, event: events.ModuleRuns) -> None:
        graph, module = self.script.capture, weakref.ref(event.module)
        place = self._modules.setdefault(module, self.script.place())
        if graph is not None and module not in self._others and event.module not in self._set:
            self._others[module] = tuple(mode(event.module, place, graph, self._toggled))

    def on_module_changed(self, event: events.ModuleChanged) -> None:
        if event.is_train:
            self._toggled.note(event.module, self.script)
            if self.script.capture is not None:
                self._set.update(event.module.modules())

    def on_autocast_entered(self, _event: events.AutocastEntered) -> None:
        self._casts |= self.script.capture is not None

    def on_environment_read(self, event: events.EnvironmentRead) -> None:
        place = self.script.place()
        if place and event.name not in self._others:
            written = self._written
            self._others[event.name] = (variable(event.name, event.value, place, written),)

    def on_environment_written(self, event: events.EnvironmentWritten) -> None:
        self._written.setdefault(event.name, self.script.place())

    def on_optimizer_steps(self, event: events.OptimizerSteps) -> None:
        optimizer: weakref.ref[Optimizer] = weakref.ref(event.optimizer)
        if self.script.capture is not None and optimizer not in self._others:
            place = self.script.place()
            self._others[optimizer] = (
                *hyperparameters(event.optimizer, place),
                stepped(event.optimizer, place),
            )

            self._stepped[optimizer] = place

    def on_capture_ends(self, event: events.CaptureEnds) -> None:
        self._flows.end(event.graph)

    def on_capture_failed(self, _event: events.CaptureFailed) -> None:
        self._flows.stop()

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        self._flows.stop()
        self._look_for_graphs_of_values()
        for place in self._of_values:
            self.findings.drop(*place)

    def _look_for_graphs_of_values(self) -> None:
        """There is a graph for each value, if not for each shape or object."""
        for place, changing in self._changing.items():
            alive = [each for each in changing if each.graph.replayable]
            if any(itertools.starmap(_may_be_of_values, itertools.pairwise(alive))):
                self._of_values.add(place)

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        graph, reads = event.graph, self._reads
        flows = self._judged = self._flows.judge()
        if flows is not None:
            reads.follow(flows)
            self._report_changing(graph, flows)
            self.findings.extend(seeded(flows.second))
            for step in flows.second.scheduled:
                self._report_scheduler(step)
            self._first_calls.captured(graph, flows)
            filled = map(without_frame, flows.reads.filled())
            self._filled[graph.number] = [(each, len(each.look_up())) for each in filled]
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
        self._computing[graph.number] = [
            (reason, place)
            for reference, place in self._stepped.items()
            if (optimizer := reference()) and (reason := computed_on_host(optimizer))
        ]
        for frozen in self._frozen[graph.number]:
            self._values[graph.frames, frozen.identity].add(frozen.before)
        self._captured |= {
            (each.subject, each.before)
            for each in self._frozen[graph.number]
            if each.subject is not None
        }
        self._forget()

    def _called_again(self) -> Callable[[], list[Finding]]:
        if self._judged is None:
            return list
        after = called_again(self._judged)

        def found() -> list[Finding]:
            findings = after().findings()
            return [replace(each, phase=self.phase, severity=_severity(each)) for each in findings]

        return found

    def _report_changing(self, graph: WatchedGraph, flows: FrozenValues) -> None:
        """What is another value in every call."""
        for finding in flows.findings():
            self._changing[finding.code, finding.frames].append(
                _Changing(graph, _arguments(finding.frames, flows.reads) or self._ran())
            )
            self.report(
                finding.code,
                finding.reason,
                finding.frames,
                phase="capture",
                fix=finding.fix,
                evidence=finding.evidence,
                severity=_severity(finding),
            )

    def _report_scheduler(self, step: SchedulerStep) -> None:
        self.findings.add(replace(captured_scheduler(step), phase="capture"))
        # The learning rate changes because of that.
        reference: weakref.ref[Optimizer] = weakref.ref(step.optimizer)
        own = self._others.get(reference, ())
        self._others[reference] = tuple(each for each in own if each.name != "lr")

    def _ran(self) -> frozenset[int]:
        """The identities of the modules that ran in the capture."""
        return frozenset(id(module) for reference in self._modules if (module := reference()))

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
        if not graph.replays:
            self._look_for_graphs_of_values()  # a graph that it replaces is gone by now
        if not graph.replays and graph.callable is None:
            self._frozen.setdefault(graph.number, []).extend(flags(graph))
        if graph.replays == 1:
            # The first replay is the call that was captured.
            for reason, place in self._computing.get(graph.number, ()):
                self.report(PYTHON_SCALAR_FROZEN, reason, place, fix=STEP_OUTSIDE)
        is_one_of_several = any(map(graph.is_alternative_to, self.script.graphs))
        stack = stack_of(self.script.frame())
        filled = [(each.look_up(), size) for each, size in self._filled.get(graph.number, ())]
        if any(isinstance(now, CONTAINERS) and len(now) < size for now, size in filled):
            self.script.publish(events.FillingUndone(graph))
        self._first_calls.replay_begins(graph)
        for frozen in list(self._frozen.get(graph.number, ())):
            values = self._values[graph.frames, frozen.identity]
            # Of flags, which are read at the first replay, there are none.
            if is_one_of_several and frozen.chooses_graph and len(values) != 1:
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
            evidence = (*evidence, f"read at {line.short}")
        if frozen.used_at:
            line = frozen.used_at[0]
            evidence = (*evidence, f"used at {line.short}")
        if place or frozen.read_at:
            self.report(
                frozen.code,
                frozen.reason,
                place or frozen.read_at,
                evidence=evidence,
                severity=frozen.severity,
                fix=frozen.fix,
            )


class _Changing(NamedTuple):
    """What is another value in every call of captured code."""

    graph: WatchedGraph
    objects: frozenset[int]
    """The identities of the arguments, such as ``self``, of which its function reads something, or
    else of the modules that ran."""


def _severity(finding: Finding) -> str | None:
    """That of a value that the code itself has changed: it changes with every call."""
    return None if finding.code == CPU_STATE_STEP_COUNTER else finding.severity


def _may_be_of_values(one: _Changing, other: _Changing) -> bool:
    """Whether each of two graphs may be meant for its own value of the same thing."""
    is_of_others = bool(one.objects) and one.objects.isdisjoint(other.objects)
    alternatives = one.graph.is_alternative_to(other.graph)
    return alternatives and not is_of_others and one.graph.shapes == other.graph.shapes


def _arguments(frames: Frames, reads: HostReads) -> frozenset[int]:
    """The identities of the arguments of the function at a line, of which it reads something."""
    return frozenset(
        each.owner
        for frame in frames[:1]
        for each in reads.watched
        if each.use.scope == "argument"
        and (each.frame.file, each.frame.function) == (frame.file, frame.function)
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
