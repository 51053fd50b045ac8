"""New values for static inputs: of the same shape, type and domain.

The meaning of a tensor is unknown, so its own values are used. Floats are drawn from them and
scaled down by a random factor, which keeps signs, ranges, zeros and the infinities of masks.
Integers are drawn from them too, because another index may be out of range; sorted ones (offsets)
stay sorted with the same first and last value, and permutations stay permutations.
"""

from __future__ import annotations

import torch

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
