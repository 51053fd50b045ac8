"""Runs a captured workload: single eager iterations, and trials: several eager iterations, or as
many replays, that begin in the same state."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from cgtool.detectors.capture_errors import explain
from cgtool.devices.device import RecorderT, VerifyTarget
from cgtool.jobs.verify.evidence import Iteration, Key, Results, Run, Trial
from cgtool.jobs.verify.float64 import Float64Recorder
from cgtool.jobs.verify.state import Snapshot, state_of
from cgtool.model.failure import user_code
from cgtool.observe.raw_tensors import (
    UNUSUAL,
    copies,
    fill_sentinel,
    holds_byte,
    holds_sentinel,
    raw,
    unchanged,
    write,
)
from cgtool.observe.tensors import whole_or_parts
from cgtool.program.boundary import first_line, user_errors
from cgtool.program.description import named_results
from cgtool.program.phases import WorkloadRun
from cgtool.program.workload import Named, inputs_of, reachable_from

Values = Mapping[int, torch.Tensor]
"""By identity of the tensor."""


# --- one iteration


def results_of(run: WorkloadRun) -> Results:
    """Outputs and gradients of all parts under one name each."""
    return {
        (kind, part_name): part
        for kind, name, tensor in named_results(run)
        for part_name, part in _readable([(name, tensor)])
    }


def _readable(named: Sequence[Named]) -> Iterator[Named]:
    """The tensors among some that can be compared. Raises CgtoolError (exit 4) for a tensor whose
    memory is unknown."""
    for name, tensor in named:
        parts = whole_or_parts(tensor)
        if not parts:
            raise user_code(
                f"cgtool cannot read the memory of {name}, a {type(tensor).__name__}",
                why="it wraps other tensors, and does not say which",
                fix="give it __tensor_flatten__ and __tensor_unflatten__, or use the tensors that "
                "it wraps as inputs and outputs",
            )
        for suffix, part in parts:
            yield f"{name}{suffix}", part


def eager_iteration(
    target: VerifyTarget,
    watch: contextlib.AbstractContextManager[object] | None = None,
    *,
    keep_casts: bool = False,
    hold: list[torch.Tensor] | None = None,
) -> Results:
    """One eager iteration, with the incoming gradients of the graphs.

    ``watch`` is entered around the user's code only, once per phase. The incoming gradients are
    appended to ``hold``; without it they are freed with the iteration.
    """
    if autocast_caches() and not keep_casts:
        # As leaving the outermost autocast does, once an iteration.
        torch.clear_autocast_cache()
    run = WorkloadRun(target.workload, target.options)
    graphs = target.session.backwards
    with target.eager_stream():
        for phase in run.phases():
            if phase.kind == "backward":
                incoming = run.backwards[phase.index].incoming
                static = graphs[phase.index].incoming if phase.index in graphs else ()
                for gradient, static_gradient in zip(incoming, static, strict=False):
                    if gradient.shape == static_gradient.shape:
                        gradient.copy_(static_gradient)
                if hold is not None:
                    hold.extend(incoming)
            activity = f"eager {phase.kind}"
            with user_errors(phase.part, activity, explain), watch or contextlib.nullcontext():
                phase.result = phase.work()
    return results_of(run)


def observed_iteration(
    target: VerifyTarget, make_recorder: Callable[..., RecorderT], **options: Any
) -> tuple[Results, RecorderT]:
    """One eager iteration under a recorder, which is made of root modules and named ranges."""
    with target.recording(make_recorder) as recorder:
        results = eager_iteration(target, recorder, **options)
    target.device.synchronize()
    return results, recorder


def autocast_caches() -> bool:
    """True when autocast is on and caches its casts of weights."""
    return bool(torch.is_autocast_enabled("cuda") and torch.is_autocast_cache_enabled())


def _arguments(target: VerifyTarget) -> Iterator[Named]:
    """The tensors among the arguments, each once."""
    ids: set[int] = set()
    for part in target.workload.parts:
        for name, tensor in _readable(inputs_of(part)):
            if id(tensor) not in ids:
                ids.add(id(tensor))
                yield f"{part.prefix}{name}", tensor


def _incoming(target: VerifyTarget) -> Iterator[Named]:
    """The gradients that each backward begins with."""
    for index, backward in target.session.backwards.items():
        where = target.workload.parts[index].prefix
        for (output, _), tensor in zip(backward.outputs, backward.incoming, strict=True):
            yield f"{where}incoming gradient of {output}", tensor


# --- trials


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
        self.arguments = list(_arguments(target))
        self.inputs = [*self.arguments, *_incoming(target)]
        """The static inputs."""
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

    def not_restored(self) -> list[str]:
        """Objects that have gone on since the capture and are not set back, in words."""
        return self._start.not_restored()

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
        """An eager run with float64 next to each op: what iterations changed has the values of
        float64, unless the recorder says that it failed."""
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
        unwritten: Sequence[Key] = ()
        for number in range(trial.iterations):
            if number:
                values = self.write_inputs(trial, number, values)
            self.replay_once(trial)
            results = results_of(self.target.session)
            if number == 0:
                graph_tensors = set(map(id, self._graph_tensors))
                unwritten = [
                    key
                    for key, tensor in results.items()
                    if id(tensor) in graph_tensors and holds_sentinel(tensor)
                ]
            iterations.append(self._iteration(values, results, copies))
        return Run(tuple(iterations), tuple(unwritten))

    def uninitialized(self, trial: Trial) -> frozenset[Key]:
        """Results that hold what was in free memory before an eager iteration."""
        self.begin_eager(trial)
        self.target.device.overwrite_free_memory(UNUSUAL)
        results = eager_iteration(self.target)
        self.target.device.synchronize()
        return frozenset(key for key, tensor in results.items() if holds_byte(tensor, UNUSUAL))

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
