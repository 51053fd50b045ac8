"""The numbers of a tensor, in a few: computed where it is, read once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from cgtool.model.capture import TensorValues
from cgtool.observe.raw_tensors import arithmetic, dense

PART = 1 << 22
"""Words after which the factors of the digest begin again."""
FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd number with as many ones as zeros: 2 ** 64 over the golden ratio."""
FIGURES = 8
"""How many ``Figures`` there are."""


class Figures(NamedTuple):
    """Of the numbers of a tensor."""

    least: float
    """Of the finite ones, like the next three; infinite if there is none."""
    largest: float
    total: float
    squares: float
    """Their sum."""
    zeros: float
    nans: float
    infinities: float
    digest: int
    """A sum of the words of its memory, each times an odd number of its place; integers add up to
    the same in any order."""


def values_of(named: Sequence[tuple[str, torch.Tensor]]) -> tuple[TensorValues, ...]:
    """Of strided tensors with elements, with PyTorch's ops. The host waits for the device once."""
    if not named:
        return ()
    with arithmetic():
        elements = [flat(tensor.detach()) for _, tensor in named]
        rows = [_rows(_numbers(values), _words(values)) for values in elements]
        read = torch.cat(rows).cpu().split([len(of) for of in rows])
    return tuple(
        values_from(
            _figures(of),
            name,
            tensor.dtype,
            tuple(tensor.shape),
            _words(values).numel(),
            partial(first_bad, tensor),
        )
        for (name, tensor), values, of in zip(named, elements, read, strict=True)
    )


def first_bad(tensor: torch.Tensor) -> tuple[int, ...]:
    """The index of the first NaN; without one, of the first infinity."""
    with arithmetic():
        values = flat(tensor.detach())
        numbers = _numbers(values)
        bad = numbers.isnan()
        found = bad if bool(bad.any()) else numbers.isinf()
        at = int(found.int().argmax()) // (2 if values.is_complex() else 1)
    index = []
    for size in reversed(tensor.shape):
        index.append(at % size)
        at //= size
    return tuple(reversed(index))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements one after the other: the tensor's own memory, or a copy of it."""
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


def _rows(numbers: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Of each part of the numbers, and of as many words: ``Figures`` as doubles [parts, FIGURES],
    with the bits of the digest."""
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
        (kept * kept).sum(),
        (wide == 0).sum().double(),
        wide.isnan().sum().double(),
        wide.isinf().sum().double(),
    )
    return torch.stack((*figures, digest.view(torch.float64)))


def _figures(rows: torch.Tensor) -> Figures:
    total, squares, zeros, nans, infinities = rows[:, 2:-1].sum(0).tolist()
    ends = rows[:, 0].min().item(), rows[:, 1].max().item()
    digest = int(rows[:, -1].view(torch.int64).sum())
    return Figures(*ends, total, squares, zeros, nans, infinities, digest)


def values_from(
    figures: Figures,
    name: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    words: int,
    first: Callable[[], tuple[int, ...]],
) -> TensorValues:
    """``words``: how many ``figures.digest`` is of; ``first`` finds a NaN or an infinity."""
    nans, infinities = int(figures.nans), int(figures.infinities)
    finite = math.prod(shape) * (2 if dtype.is_complex else 1) - nans - infinities
    return TensorValues(
        name,
        str(dtype).removeprefix("torch."),
        shape,
        figures.least if finite else None,
        figures.largest if finite else None,
        _known(figures.total / finite) if finite else None,
        _known(math.sqrt(figures.squares)) if finite else None,
        zeros=int(figures.zeros),
        nans=nans,
        infinities=infinities,
        first=first() if nans or infinities else None,
        digest=(figures.digest + words + (1 << 63)) % (1 << 64) - (1 << 63),
    )


def _known(number: float) -> float | None:
    """None for what even a double cannot hold."""
    return number if math.isfinite(number) else None
