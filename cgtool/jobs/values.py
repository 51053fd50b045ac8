"""The numbers of a tensor, in a few: computed where it is, read once."""

from __future__ import annotations

import math

import torch

from cgtool.model.capture import TensorValues
from cgtool.observe.raw_tensors import arithmetic, dense, raw

_PART = 1 << 22
"""Numbers that are looked at at once: a copy takes eight bytes for each."""
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd number with as many ones as zeros: 2 ** 64 over the golden ratio."""

_factors: dict[torch.device, torch.Tensor] = {}
"""One for each place in a part, on each device."""


def values_of(name: str, tensor: torch.Tensor) -> TensorValues:
    """Of a strided tensor with elements."""
    with raw():
        values = dense(tensor.detach())
        if values.data_ptr() % 4:
            values = values.clone()
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    with arithmetic():
        values = values.reshape(-1).as_strided((values.numel(),), (1,))
        words = values.view(torch.int32 if values.nbytes % 4 == 0 else torch.uint8)
        parts = [_digest(part, at) for at, part in enumerate(words.split(_PART))]
        size = 2 if values.is_complex() else 1
        values = _numbers(values)
        parts += [_figures(part) for part in values.split(_PART)]
        # Read at once: each time, the host waits for the device.
        read = torch.cat(parts).cpu()
        digests = read[: -(-words.numel() // _PART)].view(torch.int64).tolist()
        figures = read[len(digests) :].reshape(-1, 5)
        minimum: float | None
        maximum: float | None
        if math.isfinite(figures[:, 2].sum()):
            minimum, maximum = figures[:, 0].min().item(), figures[:, 1].max().item()
            total, nonzero = figures[:, 2].sum().item(), int(figures[:, 4].sum())
            norm = torch.linalg.vector_norm(figures[:, 3]).item()
            finite, nans, first = values.numel(), 0, None
        else:
            bad = values.isnan()
            nans = int(bad.sum())
            bad = bad if nans else values.isinf()
            first = _index(int(bad.int().argmax()) // size, shape) if bool(bad.any()) else None
            nonzero = int(values.count_nonzero())
            kept = values[values.isfinite()].double()
            finite = kept.numel()
            minimum, maximum = (kept.min().item(), kept.max().item()) if finite else (None, None)
            total, norm = kept.sum().item(), torch.linalg.vector_norm(kept).item()
    return TensorValues(
        name,
        dtype,
        shape,
        minimum,
        maximum,
        _known(total / finite) if finite else None,
        _known(norm) if finite else None,
        zeros=values.numel() - nonzero,
        nans=nans,
        infinities=values.numel() - finite - nans,
        first=first,
        digest=(sum(digests) + words.numel() + (1 << 63)) % (1 << 64) - (1 << 63),
    )


def _known(number: float) -> float | None:
    """None for what even a double cannot hold."""
    return number if math.isfinite(number) else None


def _numbers(values: torch.Tensor) -> torch.Tensor:
    """As types for which PyTorch has kernels."""
    if values.is_complex():
        return torch.view_as_real(values).reshape(-1)
    if values.is_floating_point() and values.element_size() == 1:
        packed = values.dtype == getattr(torch, "float4_e2m1fn_x2", None)
        return values.view(torch.uint8) if packed else values.float()
    return values.view(torch.uint8) if values.dtype == torch.bool else values


def _figures(part: torch.Tensor) -> torch.Tensor:
    """Least, largest, sum, square root of the sum of squares, and how many are not zero."""
    least, largest = part.aminmax()
    total = part.sum(dtype=torch.float64)
    rounded = part if part.is_floating_point() else part.double()
    norm = torch.linalg.vector_norm(rounded, dtype=torch.float64)
    return torch.stack((least.double(), largest.double(), total, norm, part.count_nonzero()))


def _digest(words: torch.Tensor, at: int) -> torch.Tensor:
    """A sum of the words, each times an odd number of its place; integers add up to the same in any
    order. As the bits of a double."""
    count = words.numel()
    factors = _factors.get(words.device)
    if factors is None or factors.numel() < count:
        # No op may name a device: on the simulated one, tensors are not where they say.
        ones = words.new_ones(1 << (count - 1).bit_length(), dtype=torch.int64)
        factors = (ones.cumsum(0) * _FACTOR) | 1
        factors = _factors[words.device] = factors ^ (factors >> 29)
    digest = (words * factors[:count]).sum() * (2 * at + 1)
    return digest.reshape(1).view(torch.float64)


def _index(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(at % size)
        at //= size
    return tuple(reversed(index))
