"""The order in which a workload runs: every forward, then every backward in reverse.

That is the order of ``torch.cuda.make_graphed_callables``, and the same for a capture, a recorded
iteration and a dry run, on a GPU and on the simulated device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from cgtool.model.options import CaptureOptions, Progress
from cgtool.program.boundary import Explain, user_errors
from cgtool.program.surface import (
    Named,
    Surface,
    call,
    differentiable,
    flatten_outputs,
    grad_outputs,
    grads,
)
from cgtool.program.workload import Part, Workload

Run = Callable[[Part, str, int, Callable[[], Any]], Any]
"""Runs one phase: (callable, ``forward`` | ``backward`` | ``step``, its index, the work)."""


@dataclass
class Phases:
    """A workload that runs in phases, and the tensors of each phase, by index of the callable."""

    workload: Workload
    options: CaptureOptions
    outputs: dict[int, list[Named]] = field(default_factory=dict)
    surfaces: dict[int, Surface] = field(default_factory=dict)
    incoming: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    gradients: dict[int, tuple[torch.Tensor | None, ...]] = field(default_factory=dict)


def wants_backward(phases: Phases) -> bool:
    return phases.options.backward and phases.workload.kind != "step"


def name_of(phases: Phases, phase: str, index: int) -> str:
    """``forward``, or ``forward 1`` where there are several callables."""
    return phase if len(phases.workload.parts) == 1 else f"{phase} {index}"


def run_phases(phases: Phases, run: Run) -> None:
    """Call ``run`` for every forward in order, then for every backward in reverse.

    Raises CgtoolError when a backward has nothing to differentiate with respect to.
    """
    parts = phases.workload.parts
    first = "step" if phases.workload.kind == "step" else "forward"
    for index, part in enumerate(parts):
        result = run(part, first, index, lambda part=part: call(part))  # type: ignore[misc]
        phases.outputs[index] = flatten_outputs(result)
    if not wants_backward(phases):
        return
    for index, part in reversed(list(enumerate(parts))):
        surface = differentiable(part, phases.outputs[index])
        if surface is None:
            continue
        incoming = grad_outputs(surface)
        phases.surfaces[index], phases.incoming[index] = surface, incoming
        phases.gradients[index] = run(
            part,
            "backward",
            index,
            lambda surface=surface, incoming=incoming: grads(  # type: ignore[misc]
                surface, incoming, phases.options.allow_unused_input
            ),
        )


def roots_of(workload: Workload) -> dict[str, torch.nn.Module]:
    """Root modules by path prefix, which begins with the callable's name if there are several."""
    if len(workload.parts) == 1:
        return dict(workload.parts[0].modules)
    roots: dict[str, torch.nn.Module] = {}
    for part in workload.parts:
        for prefix, module in part.modules.items():
            roots[f"{part.name}.{prefix}".rstrip(".")] = module
    return roots


def iterate(phases: Phases, part: Part) -> None:
    """One eager iteration of a callable, forward and backward; its tensors are not kept."""
    outputs = flatten_outputs(call(part))
    if wants_backward(phases):
        surface = differentiable(part, outputs)
        if surface is not None:
            grads(surface, grad_outputs(surface), phases.options.allow_unused_input)


def warm_up(
    phases: Phases,
    iterations: int,
    progress: Progress,
    explain: Explain,
    last: Callable[[Part], object] | None = None,
) -> None:
    """Run ``iterations`` eager iterations of each callable; ``last`` replaces the last one.

    Raises CgtoolError for what the user's code raises.
    """
    for part in phases.workload.parts:
        for iteration in range(iterations):
            progress(f"warm-up {iteration + 1}/{iterations} of {part.name}")
            with user_errors(part, "warm-up", explain):
                if last is not None and iteration == iterations - 1:
                    last(part)
                else:
                    iterate(phases, part)


WARMUP_ITERS = 3
DDP_WARMUP_ITERS = 11
"""DistributedDataParallel rebuilds its buckets and settles in its first ten iterations
(documentation of ``torch.cuda.make_graphed_callables``)."""


def warmup_iters(workload: Workload, options: CaptureOptions) -> tuple[int, str | None]:
    """The number of warm-up iterations, and a note where it is not the usual one."""
    if options.warmup_iters is not None:
        return options.warmup_iters, None
    is_ddp = any(
        isinstance(module, torch.nn.parallel.DistributedDataParallel)
        for part in workload.parts
        for root in part.modules.values()
        for module in root.modules()
    )
    if is_ddp:
        return DDP_WARMUP_ITERS, (
            f"{DDP_WARMUP_ITERS} warm-up iterations, because the workload runs "
            "DistributedDataParallel"
        )
    return WARMUP_ITERS, None
