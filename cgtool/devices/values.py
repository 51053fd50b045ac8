"""The numbers of a tensor, in a few: computed where it is, read once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from cgtool.model.capture import TensorValues
from cgtool.observe.raw_tensors import arithmetic, dense

PART = 1 << 22
"""Words after which the factors of the digest begin again."""
FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd number with as many ones as zeros: 2 ** 64 over the golden ratio."""
FIGURES = 8
"""Least, largest, sum and sum of squares of the finite numbers; how many are zero, NaN, infinite;
and the digest, as the bits of a double."""

Rows = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of numbers, and of the same memory as words: the figures of some parts, as doubles [parts,
FIGURES]. The digest is a sum of the words, each times an odd number of its place; integers add up
to the same in any order."""


def values_of(
    named: Sequence[tuple[str, torch.Tensor]], rows_of: Rows | None = None
) -> tuple[TensorValues, ...]:
    """Of strided tensors with elements. The host waits for the device once."""
    if not named:
        return ()
    with arithmetic():
        flat = [_flat(tensor.detach()) for _, tensor in named]
        rows = [(rows_of or rows_by_ops)(_numbers(values), _words(values)) for values in flat]
        read = torch.cat(rows).cpu().split([len(of) for of in rows])
        return tuple(
            _values(name, tensor, values, of)
            for (name, tensor), values, of in zip(named, flat, read, strict=True)
        )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    values = dense(tensor)
    if values.data_ptr() % 4:
        values = values.clone()
    return values.reshape(-1).as_strided((values.numel(),), (1,))


def _words(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int32 if values.nbytes % 4 == 0 else torch.uint8)


def _numbers(values: torch.Tensor) -> torch.Tensor:
    """As types for which there are kernels."""
    if values.is_complex():
        return torch.view_as_real(values).reshape(-1)
    if values.is_floating_point() and values.element_size() == 1:
        packed = values.dtype == getattr(torch, "float4_e2m1fn_x2", None)
        return values.view(torch.uint8) if packed else values.float()
    return values.view(torch.uint8) if values.dtype == torch.bool else values


def rows_by_ops(numbers: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """``Rows`` with PyTorch's ops."""
    count = -(-max(numbers.numel(), words.numel()) // PART)
    parts = (
        (numbers[at * PART : (at + 1) * PART].double(), words[at * PART : (at + 1) * PART])
        for at in range(count)
    )
    return torch.stack([_row(*part, at) for at, part in enumerate(parts)])


def _row(wide: torch.Tensor, words: torch.Tensor, at: int) -> torch.Tensor:
    finite = wide.isfinite()
    kept = wide.where(finite, 0.0)
    # No op may name a device: on the simulated one, tensors are not where they say.
    places = words.new_ones(words.numel(), dtype=torch.int64).cumsum(0)
    factors = (places * FACTOR) | 1
    digest = (words * (factors ^ (factors >> 29))).sum() * (2 * at + 1)
    none = wide.new_full((1,), math.inf)
    figures = (
        torch.cat((wide.where(finite, math.inf), none)).min(),
        torch.cat((wide.where(finite, -math.inf), -none)).max(),
        kept.sum(),
        kept.dot(kept),
        (wide == 0).sum().double(),
        wide.isnan().sum().double(),
        wide.isinf().sum().double(),
    )
    return torch.stack((*figures, digest.view(torch.float64)))


def _values(
    name: str, tensor: torch.Tensor, values: torch.Tensor, rows: torch.Tensor
) -> TensorValues:
    shape, size = tuple(tensor.shape), 2 if values.is_complex() else 1
    least, largest = rows[:, 0].min().item(), rows[:, 1].max().item()
    total, square, zeros, nans, infinities = rows[:, 2:-1].sum(0).tolist()
    digest = int(rows[:, -1].view(torch.int64).sum())
    bad, infinite = int(nans), int(infinities)
    finite = values.numel() * size - bad - infinite
    first = None
    if bad or infinite:
        numbers = _numbers(values)
        found = numbers.isnan() if bad else numbers.isinf()
        first = _index(int(found.int().argmax()) // size, shape)
    return TensorValues(
        name,
        str(tensor.dtype).removeprefix("torch."),
        shape,
        least if finite else None,
        largest if finite else None,
        _known(total / finite) if finite else None,
        _known(math.sqrt(square)) if finite else None,
        zeros=int(zeros),
        nans=bad,
        infinities=infinite,
        first=first,
        digest=(digest + _words(values).numel() + (1 << 63)) % (1 << 64) - (1 << 63),
    )


def _known(number: float) -> float | None:
    """None for what even a double cannot hold."""
    return number if math.isfinite(number) else None


def _index(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(at % size)
        at //= size
    return tuple(reversed(index))
