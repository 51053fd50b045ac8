"""New values for static inputs: of the same shape, type and domain, or moved by one rounding.

The meaning of a tensor is unknown, so its own values are used. Floats are drawn from them and
scaled down by a random factor, which keeps signs, ranges, zeros and the infinities of masks.
Integers are drawn from them too, because another index may be out of range; sorted ones (offsets)
stay sorted with the same first and last value, and permutations stay permutations.
"""

from __future__ import annotations

import torch

from cgtool.jobs.verify.runs import Trial, TrialRunner, float_parameters
from cgtool.jobs.verify.state import raw


def fresh(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor | None:
    """New values on the CPU for a tensor; None if there are none."""
    with raw():
        values = tensor.detach().cpu()
        if values.layout != torch.strided or values.is_quantized or not values.numel():
            return None
        if values.is_floating_point() or values.is_complex():
            return _floats(values, generator)
        if values.dtype == torch.bool:
            return _drawn(values, generator)
        return _integers(values, generator)


def _drawn(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    flat = values.reshape(-1)
    chosen = torch.randint(flat.numel(), (flat.numel(),), generator=generator)
    return flat[chosen].reshape(values.shape)


def _floats(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    wide = values.to(torch.complex128 if values.is_complex() else torch.float64)
    finite = wide.isfinite()
    shrink = 0.5 + 0.5 * torch.rand(values.shape, generator=generator, dtype=torch.float64)
    flat = wide.reshape(-1)
    if not bool((flat != 0).any()):
        # Nothing to draw from: all zeros usually means "no value yet".
        uniform = torch.rand(values.shape, generator=generator, dtype=torch.float64)
        return uniform.to(values.dtype)
    if _increasing(flat):
        # Edges of bins: new values in the same order.
        return (wide * float(shrink.reshape(-1)[0])).to(values.dtype)
    pool = flat[finite.reshape(-1)]
    chosen = (
        torch.randint(pool.numel(), (flat.numel(),), generator=generator) if len(pool) else None
    )
    drawn = wide if chosen is None else pool[chosen].reshape(values.shape)
    return torch.where(finite, drawn * shrink, wide).to(values.dtype)


def _integers(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    flat = values.reshape(-1).to(torch.int64)
    if flat.numel() == 1 or _increasing(flat):
        return values
    if bool((flat[1:] >= flat[:-1]).all()):
        drawn = _drawn(flat, generator).sort().values
        drawn[0], drawn[-1] = flat[0], flat[-1]
        return drawn.to(values.dtype).reshape(values.shape)
    if flat.unique().numel() == flat.numel():
        return (
            flat[torch.randperm(flat.numel(), generator=generator)]
            .to(values.dtype)
            .reshape(values.shape)
        )
    return _drawn(values, generator)


def _increasing(flat: torch.Tensor) -> bool:
    if flat.is_complex() or flat.numel() < 3:
        return False
    return bool((flat[1:] > flat[:-1]).all())


RUNS = 3


def perturbed(runner: TrialRunner, trial: Trial) -> list[Trial]:
    """Copies of the trial with every floating-point input and parameter changed by at most one
    rounding, for the effect of another order of summation.

    A replay may use other kernels than eager (another algorithm for a matrix product, because the
    workspace differs), which round differently. How far that carries depends on the workload, so it
    is measured: the results of eager change as much when its inputs change by one rounding.
    """
    generator = torch.Generator()
    generator.manual_seed(1)
    tensors = {
        id(tensor): tensor
        for _, tensor in (*runner.inputs, *float_parameters(runner.target.workload))
        if tensor.is_floating_point()
    }
    trials = []
    for _ in range(RUNS):
        writes = [
            (tensor, _moved(value, generator))
            for tensor in tensors.values()
            if (value := runner.value_at_start(tensor, trial)) is not None
        ]
        others = [write for write in trial.writes if id(write[0]) not in tensors]
        trials.append(Trial(trial.name, trial.iterations, [*others, *writes], order=trial.order))
    return trials


def _moved(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    with raw():
        signs = torch.randint(-1, 2, values.shape, generator=generator).to(values.device)
        step = torch.finfo(values.dtype).eps
        wide = values.to(torch.float64)
        return (wide * (1 + step * signs)).to(values.dtype)
