"""Runs trials of a captured workload: eager iterations, or as many replays, that begin in the same
state."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from msgspec.structs import replace

from cgtool.detectors.reporting import FindingLog
from cgtool.devices.device import VerifyTarget
from cgtool.jobs.verify.evidence import Iteration, Key, Results, Run, Trial
from cgtool.jobs.verify.float64 import Float64Recorder
from cgtool.jobs.verify.iterations import eager_iteration, results_of, static_inputs
from cgtool.jobs.verify.liveness import Liveness
from cgtool.jobs.verify.raw_tensors import (
    copies,
    fill_sentinel,
    holds_sentinel,
    raw,
    unchanged,
    write,
)
from cgtool.jobs.verify.state import Snapshot, state_of
from cgtool.model.capture import Caveat, Frame, Frames
from cgtool.model.finding import Finding
from cgtool.model.options import Progress, VerifyOptions
from cgtool.program.boundary import first_line
from cgtool.program.workload import reachable_from

Queries = Sequence[Frames]
"""Call chains that queried whether a stream is capturing, innermost first."""
Values = Mapping[int, torch.Tensor]
"""By identity of the tensor."""


class DeviceLostError(Exception):
    """An eager run failed so that the device cannot be used afterwards: a device-side assert."""


class ReplayFailedError(Exception):
    """A replay failed, and the device cannot be used afterwards."""

    def __init__(self, trial: str, error: RuntimeError) -> None:
        super().__init__(f"{trial}: a replay failed: {first_line(error)}")


class TrialRunner:
    """Runs trials: eager from the state before the capture, replays in the layout after it."""

    def __init__(self, target: VerifyTarget, start: Snapshot) -> None:
        self.target = target
        self._start = start
        after = reachable_from(target.workload)
        self._restore_end = after.layout()
        self.inputs = static_inputs(target)
        held = [
            *results_of(target.session).values(),
            *(tensor for _, tensor in after.tensors.values()),
        ]
        self._graph_tensors = [
            tensor
            for tensor in held
            if tensor.layout == torch.strided
            and id(tensor) not in start.values
            and target.in_graph_memory(tensor)
        ]
        """Tensors that the graphs must write before they are read."""
        self._incoming = [
            tensor for backward in target.session.backwards.values() for tensor in backward.incoming
        ]
        self._incoming_values = copies({id(tensor): tensor for tensor in self._incoming})

    def begin_eager(self, trial: Trial, skipped: int = 0) -> Values:
        """Restore everything as it was before the capture, run ``skipped`` iterations, and write
        the inputs of the next. Returns the values that this one begins with."""
        self._start.restore()
        values = self._begin(trial)
        for number in range(1, skipped + 1):
            self.iterate()
            values = self.write_inputs(trial, number, values)
        return values

    def begin_replay(self, trial: Trial) -> Values:
        """Restore the start's values in the objects that the capture left, and write a sentinel
        wherever the graphs must write: a sentinel after a replay was not overwritten by it."""
        self._restore_end()
        self._start.restore_contents()
        with raw():
            for tensor in self._graph_tensors:
                fill_sentinel(tensor)
        return self._begin(trial)

    def _begin(self, trial: Trial) -> Values:
        if trial.seed is not None:
            torch.manual_seed(trial.seed)
        with raw():
            for tensor in self._incoming:
                tensor.detach().copy_(self._incoming_values[id(tensor)])
        return self.write_inputs(trial, 0, {**self._start.values, **self._incoming_values})

    def write_inputs(self, trial: Trial, number: int, values: Values) -> Values:
        """Write the inputs of an iteration, before it runs. ``values``: what the iteration before
        began with; returns what this one begins with."""
        writes = trial.writes[number] if number < len(trial.writes) else ()
        for tensor, new in writes:
            write(tensor, new)
        if not writes and number:
            return values
        written = {id(tensor): new for tensor, new in writes}
        # Read back: inputs may share memory with each other, or with themselves.
        return {**values, **written, **copies({id(tensor): tensor for _, tensor in self.inputs})}

    def iterate(self) -> None:
        """One eager iteration; its results are not kept."""
        eager_iteration(self.target)
        self.target.device.synchronize()

    def eager(self, trial: Trial) -> Run:
        """Run ``trial.iterations`` consecutive eager iterations."""
        return self._eager(trial, copies)

    def float64(self, trial: Trial) -> tuple[Run, Float64Recorder]:
        """The same with float64 next to each op: what iterations changed has the values of float64,
        unless the recorder says that it failed."""
        make_recorder = partial(Float64Recorder, device=self.target.device)
        with self.target.recording(make_recorder) as recorder:
            return self._eager(trial, recorder.shadows.values, recorder), recorder

    def _eager(
        self,
        trial: Trial,
        copy: Callable[[Results], Results],
        recorder: Float64Recorder | None = None,
    ) -> Run:
        values = self.begin_eager(trial)
        iterations = []
        for number in range(trial.iterations):
            if number:
                values = self.write_inputs(trial, number, values)
            results = eager_iteration(self.target, recorder)
            self.target.device.synchronize()
            if recorder is not None and recorder.failure is not None:
                break
            iterations.append(self._iteration(values, results, copy))
            del results
        # Gradients and caches of an eager run must not affect the next run.
        gc.collect()
        return Run(tuple(iterations))

    def replay_once(self, trial: Trial) -> None:
        """Every graph, in the trial's order. Raises ReplayFailedError."""
        try:
            for graph in trial.order(self.target.session.graphs):
                graph.graph.replay()
            self.target.device.synchronize()
        except RuntimeError as error:
            raise ReplayFailedError(trial.name, error) from error

    def replay(self, trial: Trial) -> Run:
        """Run ``trial.iterations`` replays back to back."""
        values = self.begin_replay(trial)
        iterations: list[Iteration] = []
        unwritten: Sequence[str] = ()
        for number in range(trial.iterations):
            if number:
                values = self.write_inputs(trial, number, values)
            self.replay_once(trial)
            results = results_of(self.target.session)
            if number == 0:
                graph_tensors = set(map(id, self._graph_tensors))
                unwritten = [
                    name
                    for (_, name), tensor in results.items()
                    if id(tensor) in graph_tensors and holds_sentinel(tensor)
                ]
            iterations.append(self._iteration(values, results, copies))
        return Run(tuple(iterations), tuple(unwritten))

    def _iteration(
        self, values: Values, results: Results, copy: Callable[[Results], Results]
    ) -> Iteration:
        """``values``: what it began with; ``copy`` keeps what it changed."""
        before: dict[Key, torch.Tensor] = {}
        changed = dict(results)
        for name, tensor in {**state_of(self.target.workload), **dict(self.inputs)}.items():
            start = values.get(id(tensor))
            if start is not None:
                before["state", name] = start
            if start is None or not unchanged(start, tensor):
                changed["state", name] = tensor
        return Iteration(before, {**before, **copy(changed)})


@dataclass
class Log:
    """What the report will say."""

    progress: Progress
    entry: Frame | None
    """Where the entry point is defined: for findings that have no line."""
    findings: FindingLog = field(default_factory=FindingLog)
    notes: list[Caveat] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)

    def add(self, *findings: Finding) -> None:
        for finding in findings:
            frames = finding.frames or ((self.entry,) if self.entry is not None else ())
            self.findings.add(replace(finding, frames=frames))

    def note(self, code: str, text: str) -> None:
        if (caveat := Caveat(code, text)) not in self.notes:
            self.notes.append(caveat)


@dataclass(frozen=True)
class Subject:
    """A captured workload, and what was observed before and during the capture."""

    target: VerifyTarget
    options: VerifyOptions
    runner: TrialRunner
    liveness: Liveness
    queries: Queries
    trial: Trial
    """Run with the inputs of the capture."""
    log: Log

    @property
    def other_kernels(self) -> bool:
        """The replay may run other kernels than eager. The simulated device runs the same ones,
        unless the code asks whether it is being captured."""
        return self.target.has_kernels or bool(self.queries)
