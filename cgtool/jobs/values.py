"""The numbers of a tensor, in a few: computed where it is, read once."""

from __future__ import annotations

import torch

from cgtool.model.capture import TensorValues
from cgtool.observe.raw_tensors import arithmetic, dense, raw

_PART = 1 << 22
"""Numbers that are looked at at once: the copies take 48 bytes for each."""
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd number with as many ones as zeros: 2 ** 64 over the golden ratio."""


def values_of(name: str, tensor: torch.Tensor) -> TensorValues:
    """Of a strided tensor with elements."""
    with raw():
        values = dense(tensor.detach()).reshape(-1)
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    with arithmetic():
        bits = values.view(torch.uint8)
        size = 2 if values.is_complex() else 1
        if size == 2:
            values = torch.view_as_real(values).reshape(-1)
        parts = [_figures(part) for part in values.split(_PART)]
        digests = [_digest(part, at) for at, part in enumerate(bits.split(8 * _PART))]
        figures = torch.stack(parts).cpu()
        digest = int(torch.stack(digests).cpu().sum())
        counts, numbers = figures[:, :3].sum(0).long().tolist(), figures[:, 3:]
        zeros, nans, infinities = counts
        finite = values.numel() - nans - infinities
        first = None
        if nans or infinities:
            found = values.isnan() if nans else values.isinf()
            first = _index(int(found.int().argmax()) // size, shape)
        if not finite:
            return TensorValues(
                name, dtype, shape, zeros=zeros, nans=nans, infinities=infinities, first=first,
                digest=digest,
            )  # fmt: skip
        return TensorValues(
            name,
            dtype,
            shape,
            float(numbers[:, 0].min()),
            float(numbers[:, 1].max()),
            float(numbers[:, 2].sum()) / finite,
            float(numbers[:, 3].sum().sqrt()),
            zeros,
            nans,
            infinities,
            first,
            digest,
        )


def _figures(part: torch.Tensor) -> torch.Tensor:
    """Counts of zeros, NaNs and infinities; least, largest, sum and sum of squares of the rest."""
    wide = part.double()
    nans, infinities = wide.isnan(), wide.isinf()
    left_out = nans | infinities
    finite = wide.masked_fill(left_out, 0.0)
    return torch.stack(
        (
            (wide == 0).sum().double(),
            nans.sum().double(),
            infinities.sum().double(),
            wide.masked_fill(left_out, float("inf")).min(),
            wide.masked_fill(left_out, float("-inf")).max(),
            finite.sum(),
            finite.square().sum(),
        )
    )


def _digest(bits: torch.Tensor, at: int) -> torch.Tensor:
    """A sum of the bytes, each times an odd number of its place; integers add up to the same in any
    order."""
    # No op may name a device: on the simulated one, tensors are not where they say.
    places = torch.ones_like(bits, dtype=torch.int64).cumsum(0)
    factors = ((places + at * 8 * _PART) * _FACTOR) | 1
    return ((bits.long() + 1) * (factors ^ (factors >> 29))).sum()


def _index(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(at % size)
        at //= size
    return tuple(reversed(index))
