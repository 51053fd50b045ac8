"""One iteration of a workload: what runs, what it reads, and what it returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from cgtool.detectors.capture_errors import explain
from cgtool.devices.device import RecorderT, VerifyTarget
from cgtool.jobs.verify.evidence import Results
from cgtool.model.failure import user_code
from cgtool.observe.tensors import whole_or_parts
from cgtool.program.boundary import user_errors
from cgtool.program.description import named_results
from cgtool.program.phases import WorkloadRun
from cgtool.program.workload import Named, inputs_of


def results_of(run: WorkloadRun) -> Results:
    """Outputs and gradients of all parts under one name each."""
    return {
        (kind, part_name): part
        for kind, name, tensor in named_results(run)
        for part_name, part in _readable([(name, tensor)])
    }


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


def static_inputs(target: VerifyTarget) -> list[Named]:
    """The static inputs: tensors among the arguments, and the incoming gradients."""
    workload = target.workload
    inputs: list[Named] = []
    ids: set[int] = set()
    for part in workload.parts:
        for name, tensor in _readable(inputs_of(part)):
            if id(tensor) not in ids:
                ids.add(id(tensor))
                inputs.append((f"{part.prefix}{name}", tensor))
    for index, backward in target.session.backwards.items():
        where = workload.parts[index].prefix
        for (output, _), tensor in zip(backward.outputs, backward.incoming, strict=True):
            inputs.append((f"{where}incoming gradient of {output}", tensor))
    return inputs
