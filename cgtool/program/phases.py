"""The order in which a workload runs: every forward, then every backward in reverse.

That is the order of ``torch.cuda.make_graphed_callables``, and the same for a capture, a recorded
iteration and a dry run, on a GPU and on the simulated device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

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


class Phased(Protocol):
    """What goes through the phases, and keeps what came of each, by index of the callable."""

    workload: Workload
    options: CaptureOptions
    outputs: dict[int, list[Named]]
    surfaces: dict[int, Surface]
    incoming: dict[int, list[torch.Tensor]]
    gradients: dict[int, tuple[torch.Tensor | None, ...]]


@dataclass
class Phases:
    """The plainest of them."""

    workload: Workload
    options: CaptureOptions
    outputs: dict[int, list[Named]] = field(default_factory=dict)
    surfaces: dict[int, Surface] = field(default_factory=dict)
    incoming: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    gradients: dict[int, tuple[torch.Tensor | None, ...]] = field(default_factory=dict)


def wants_backward(one: Phased) -> bool:
    return one.options.backward and one.workload.kind != "step"


def name_of(one: Phased, phase: str, index: int) -> str:
    """``forward``, or ``forward 1`` where there are several callables."""
    return phase if len(one.workload.parts) == 1 else f"{phase} {index}"


def through(one: Phased, run: Run) -> None:
    """Every forward in order, then every backward in reverse, each handed to ``run``."""
    parts = one.workload.parts
    first = "step" if one.workload.kind == "step" else "forward"
    for index, part in enumerate(parts):
        result = run(part, first, index, lambda part=part: call(part))  # type: ignore[misc]
        one.outputs[index] = flatten_outputs(result)
    if not wants_backward(one):
        return
    for index, part in reversed(list(enumerate(parts))):
        surface = differentiable(part, one.outputs[index])
        if surface is None:
            continue
        incoming = grad_outputs(surface)
        one.surfaces[index], one.incoming[index] = surface, incoming
        one.gradients[index] = run(
            part,
            "backward",
            index,
            lambda surface=surface, incoming=incoming: grads(  # type: ignore[misc]
                surface, incoming, one.options.allow_unused_input
            ),
        )


def roots_of(workload: Workload) -> dict[str, torch.nn.Module]:
    """Root modules by path prefix; several callables are told apart by their names."""
    if len(workload.parts) == 1:
        return dict(workload.parts[0].modules)
    roots: dict[str, torch.nn.Module] = {}
    for part in workload.parts:
        for prefix, module in part.modules.items():
            roots[f"{part.name}.{prefix}".rstrip(".")] = module
    return roots


def iterate(one: Phased, part: Part) -> None:
    """One eager iteration of a callable, forward and backward, leaving nothing behind."""
    outputs = flatten_outputs(call(part))
    if wants_backward(one):
        surface = differentiable(part, outputs)
        if surface is not None:
            grads(surface, grad_outputs(surface), one.options.allow_unused_input)


def warm_up(
    one: Phased,
    iterations: int,
    progress: Progress,
    explain: Explain,
    last: Callable[[Part], object] | None = None,
) -> None:
    """So many eager iterations of each callable; ``last`` runs in place of the last one.

    Raises CgtoolError for what the user's code raises.
    """
    for part in one.workload.parts:
        for iteration in range(iterations):
            progress(f"warm-up {iteration + 1}/{iterations} of {part.name}")
            with user_errors(part, "warm-up", explain):
                if last is not None and iteration == iterations - 1:
                    last(part)
                else:
                    iterate(one, part)


WARMUP_ITERS = 3
DDP_WARMUP_ITERS = 11
"""DistributedDataParallel rebuilds its buckets and settles in its first ten iterations
(documentation of ``torch.cuda.make_graphed_callables``)."""


def warmup_iters(workload: Workload, options: CaptureOptions) -> tuple[int, str | None]:
    """How many warm-up iterations, and the note that the reader needs if it is not the usual."""
    if options.warmup_iters is not None:
        return options.warmup_iters, None
    wrapped = any(
        isinstance(module, torch.nn.parallel.DistributedDataParallel)
        for part in workload.parts
        for root in part.modules.values()
        for module in root.modules()
    )
    if wrapped:
        return DDP_WARMUP_ITERS, (
            f"{DDP_WARMUP_ITERS} warm-up iterations, because the workload runs "
            "DistributedDataParallel"
        )
    return WARMUP_ITERS, None
