"""Runs of a workload that begin in the same state: eager iterations, or as many replays."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from cgtool.detectors.capture_errors import explain
from cgtool.devices.device import VerifyTarget
from cgtool.jobs.verify import state
from cgtool.jobs.verify.reachable import Reachable
from cgtool.jobs.verify.reference import Float64Recorder
from cgtool.jobs.verify.state import Snapshot, copies, distinct, is_finite, raw, write
from cgtool.model.failure import user_code
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.ops import OpRecorder
from cgtool.observe.tensors import whole_or_parts
from cgtool.program.boundary import first_line, user_errors
from cgtool.program.phases import WorkloadRun, roots_of, run_phases
from cgtool.program.workload import Named, Part, Workload, inputs_of

Results = dict[tuple[str, str], torch.Tensor]
"""Tensors by (kind, name): outputs and gradients."""
RecorderT = TypeVar("RecorderT", bound=OpRecorder)


def _prefixed(workload: Workload, part: Part, name: str) -> str:
    return f"{part.name}: {name}" if len(workload.parts) > 1 else name


def results_of(phases: WorkloadRun) -> Results:
    """Outputs and gradients of all parts under one name each."""
    workload = phases.workload
    results: Results = {}
    for index, named in phases.outputs.items():
        for name, tensor in _readable(named):
            results["output", _prefixed(workload, workload.parts[index], name)] = tensor
    for index, gradients in phases.gradients.items():
        for (name, _), gradient in zip(phases.backwards[index].inputs, gradients, strict=True):
            if gradient is not None:
                for part_name, tensor in _readable([(f"gradient of {name}", gradient)]):
                    full = _prefixed(workload, workload.parts[index], part_name)
                    results["gradient", full] = tensor
    return results


def _readable(named: Sequence[Named]) -> Iterator[Named]:
    """What can be compared of some tensors. Raises CgtoolError (exit 4) for a tensor whose memory
    is unknown."""
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
    phases = WorkloadRun(target.workload, target.options)
    graphs = target.session.backwards

    def run(part: Part, phase: str, index: int, body: Callable[[], Any]) -> Any:
        if phase == "backward":
            incoming = phases.backwards[index].incoming
            static = graphs[index].incoming if index in graphs else ()
            for gradient, static_gradient in zip(incoming, static, strict=False):
                if gradient.shape == static_gradient.shape:
                    gradient.copy_(static_gradient)
            if hold is not None:
                hold.extend(incoming)
        with user_errors(part, f"eager {phase}", explain), watch or contextlib.nullcontext():
            return body()

    with target.device.eager_stream():
        run_phases(phases, run)
    return results_of(phases)


def observed_iteration(
    target: VerifyTarget, make_recorder: Callable[..., RecorderT], **options: Any
) -> tuple[Results, RecorderT]:
    """One eager iteration under a recorder, which is made of root modules and named ranges."""
    with watch_annotations(target.options.annotations) as annotations:
        recorder = make_recorder(roots_of(target.workload), annotations)
        results = eager_iteration(target, recorder, **options)
    target.device.synchronize()
    return results, recorder


def autocast_caches() -> bool:
    """True when autocast is on and caches its casts of weights."""
    return bool(torch.is_autocast_enabled("cuda") and torch.is_autocast_cache_enabled())


def static_inputs(target: VerifyTarget) -> list[Named]:
    """The static inputs: tensors among the arguments, and the incoming gradients."""
    workload = target.workload
    inputs: list[Named] = []
    ids: set[int] = set()
    for part in workload.parts:
        for name, tensor in _readable(inputs_of(part)):
            if id(tensor) not in ids:
                ids.add(id(tensor))
                inputs.append((_prefixed(workload, part, name), tensor))
    for index, backward in target.session.backwards.items():
        for (output, _), tensor in zip(backward.outputs, backward.incoming, strict=True):
            name = _prefixed(workload, workload.parts[index], f"incoming gradient of {output}")
            inputs.append((name, tensor))
    return inputs


Writes = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Static tensors and new values for them."""
Values = dict[int, torch.Tensor]
"""By identity of the tensor."""


@dataclass
class Trial:
    """The start and the length of a run."""

    name: str
    iterations: int = 1
    writes: Sequence[Writes] = ()
    """What is written before each iteration. If it has fewer items than the trial has iterations,
    the other iterations begin with what the previous one left."""
    means: str = ""
    """What the trial does, for the report."""
    start_values: dict[int, Values] = field(default_factory=dict, repr=False)
    """The inputs' values after these writes, by number of the iteration."""
    order: Callable[[Sequence[Any]], Sequence[Any]] = list
    """The order in which the graphs are replayed."""

    def iteration(self, number: int) -> str:
        """The name of iteration ``number`` (from 0) in the table."""
        return self.name if self.iterations == 1 else f"{self.name}, replay {number + 1}"


@dataclass
class Run:
    """For each iteration: outputs, gradients, and the state that it changed."""

    values: list[Results] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """Names of all state tensors that were reachable at the end."""
    unwritten: list[str] = field(default_factory=list)
    """Results that still have the sentinel after the first replay."""

    def first_not_finite(self) -> int | None:
        """The first iteration that left a NaN or an infinity; None for none."""
        for number, values in enumerate(self.values):
            if not all(map(is_finite, values.values())):
                return number
        return None


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
        self.start = start
        after = Reachable(target.workload)
        self._restore_end = after.layout()
        self.inputs = static_inputs(target)
        held = [
            *results_of(target.session).values(),
            *(tensor for _, tensor in after.tensors.values()),
        ]
        self.graph_tensors = [
            tensor
            for tensor in held
            if tensor.layout == torch.strided
            and start.value_of(tensor) is None
            and target.in_graph_memory(tensor)
        ]
        """Tensors that the graphs must write before they are read."""
        self.written: list[str] = []
        """Inputs that a replay changed."""
        self._incoming = [
            tensor for backward in target.session.backwards.values() for tensor in backward.incoming
        ]
        self._incoming_values = copies({id(tensor): tensor for tensor in self._incoming})

    def write_inputs(self, trial: Trial, number: int) -> None:
        """Write the inputs of an iteration, before it runs."""
        writes = trial.writes[number] if number < len(trial.writes) else ()
        for tensor, values in writes:
            write(tensor, values)
        if not writes and number:
            trial.start_values[number] = trial.start_values[number - 1]
            return
        # Read back: inputs may share memory with each other, or with themselves.
        trial.start_values[number] = copies({id(tensor): tensor for _, tensor in self.inputs})

    def _write_incoming(self) -> None:
        with raw():
            for tensor in self._incoming:
                tensor.detach().copy_(self._incoming_values[id(tensor)])

    def begin_eager(self, trial: Trial, skipped: int = 0) -> None:
        """Restore everything as it was before the capture, run ``skipped`` iterations, and write
        the inputs of the next."""
        self.start.restore()
        self._write_incoming()
        for number in range(skipped):
            self.write_inputs(trial, number)
            self.iterate()
        self.write_inputs(trial, skipped)

    def begin_replay(self, trial: Trial) -> None:
        """Restore the start's values in the objects that the capture left, and write a sentinel
        wherever the graphs must write: a sentinel after a replay was not overwritten by it."""
        self._restore_end()
        self.start.restore_contents()
        with raw():
            for tensor in self.graph_tensors:
                fill_sentinel(tensor)
        self._write_incoming()
        self.write_inputs(trial, 0)

    def value_at_start(
        self, tensor: torch.Tensor, trial: Trial, number: int = 0
    ) -> torch.Tensor | None:
        """The value of a tensor when an iteration of the trial begins that changed nothing before;
        None for a tensor of no state."""
        if number in trial.start_values and id(tensor) in trial.start_values[number]:
            return trial.start_values[number][id(tensor)]
        for writes in reversed(trial.writes[: number + 1]):
            for written, values in writes:
                if written is tensor:
                    return values
        return self._incoming_values.get(id(tensor), self.start.value_of(tensor))

    def iterate(self) -> None:
        """One eager iteration; its results are not kept."""
        eager_iteration(self.target)
        self.target.device.synchronize()

    def reference(self, trial: Trial) -> tuple[Run, Float64Recorder]:
        """The same with float64 next to each op: the run's values are those of float64, unless the
        recorder says that it failed."""
        with watch_annotations(self.target.options.annotations) as annotations:
            roots = roots_of(self.target.workload)
            recorder = Float64Recorder(roots, annotations, self.target.device)
            return self.eager(trial, recorder), recorder

    def eager(self, trial: Trial, recorder: Float64Recorder | None = None) -> Run:
        """Run ``trial.iterations`` consecutive eager iterations."""
        self.begin_eager(trial)
        run = Run()
        for number in range(trial.iterations):
            if number:
                self.write_inputs(trial, number)
            results = eager_iteration(self.target, recorder)
            self.target.device.synchronize()
            if recorder is not None and recorder.failure is not None:
                break
            self._collect(run, results, trial, number, recorder)
            del results
        # Gradients and caches of an eager run must not affect the next run.
        gc.collect()
        return run

    def replay_once(self, trial: Trial) -> None:
        """Every graph, in the trial's order. Raises ReplayFailedError."""
        try:
            for graph in trial.order(self.target.session.captured):
                graph.graph.replay()
            self.target.device.synchronize()
        except RuntimeError as error:
            raise ReplayFailedError(trial.name, error) from error

    def replay(self, trial: Trial) -> Run:
        """Run ``trial.iterations`` replays back to back."""
        self.begin_replay(trial)
        run = Run()
        for number in range(trial.iterations):
            if number:
                self.write_inputs(trial, number)
            self.replay_once(trial)
            results = results_of(self.target.session)
            if number == 0:
                run.unwritten = [
                    name
                    for (_, name), tensor in results.items()
                    if any(tensor is written for written in self.graph_tensors)
                    and holds_sentinel(tensor)
                ]
            self._collect(run, results, trial, number)
        changed = {name for values in run.values for _, name in values}
        self.written += [
            name for name, _ in self.inputs if name in changed and name not in self.written
        ]
        return run

    def _collect(
        self,
        run: Run,
        results: Results,
        trial: Trial,
        number: int,
        recorder: Float64Recorder | None = None,
    ) -> None:
        named = {**state.read(self.target.workload), **dict(self.inputs)}
        changed = dict(results)
        for name, tensor in named.items():
            before = self.value_at_start(tensor, trial, number)
            if before is None or not state.unchanged(before, tensor):
                changed["state", name] = tensor
        run.values.append(copies(changed) if recorder is None else recorder.shadows.values(changed))
        run.names = set(named)

    def base(self, trial: Trial) -> list[dict[str, torch.Tensor]]:
        """For each iteration, state by name: the values of what no iteration so far has changed."""
        self.start.restore()
        named = (*state.read(self.target.workload).items(), *self.inputs)
        return [
            {
                name: value
                for name, tensor in named
                if (value := self.value_at_start(tensor, trial, number)) is not None
            }
            for number in range(trial.iterations)
        ]


def fill_sentinel(tensor: torch.Tensor) -> None:
    """Fill with NaN or the smallest number, which a replay is unlikely to write."""
    target = distinct(tensor)
    if target.is_floating_point() or target.is_complex():
        target.fill_(float("nan"))
    elif target.dtype == torch.bool:
        target.fill_(True)
    elif not target.is_quantized:
        target.fill_(torch.iinfo(target.dtype).min)


def holds_sentinel(tensor: torch.Tensor) -> bool:
    """True when every element is the sentinel, and not by chance."""
    with raw():
        if not tensor.numel() or tensor.dtype == torch.bool or tensor.is_quantized:
            return False
        if tensor.is_floating_point() or tensor.is_complex():
            return bool(tensor.isnan().all())
        return tensor.dtype != torch.uint8 and bool((tensor == torch.iinfo(tensor.dtype).min).all())
