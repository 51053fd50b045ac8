"""The numbers of a tensor, in a few: computed where it is, read once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from cgtool.model.capture import TensorValues
from cgtool.observe.raw_tensors import arithmetic, dense

_PART = 1 << 22
"""Numbers that are looked at at once: a copy takes eight bytes for each."""
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd number with as many ones as zeros: 2 ** 64 over the golden ratio."""
_FIGURES = 6

_factors: dict[torch.device, torch.Tensor] = {}
"""One for each place in a part, on each device."""


def values_of(named: Sequence[tuple[str, torch.Tensor]]) -> tuple[TensorValues, ...]:
    """Of strided tensors with elements. A launch takes ten microseconds, and so does each wait of
    the host, so there are few of either."""
    if not named:
        return ()
    with arithmetic():
        flat = [_flat(tensor.detach()) for _, tensor in named]
        rows = [_rows(values) for values in flat]
        read = torch.cat([row for of in rows for row in of]).cpu().view(-1, _FIGURES)
        figures, digests = read.tolist(), read[:, -1].view(torch.int64).tolist()
        known = []
        for (name, tensor), values, of in zip(named, flat, rows, strict=True):
            count = len(of)
            known.append(_values(name, tensor, values, figures[:count], digests[:count]))
            del figures[:count], digests[:count]
        return tuple(known)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    values = dense(tensor)
    if values.data_ptr() % 4:
        values = values.clone()
    return values.reshape(-1).as_strided((values.numel(),), (1,))


def _rows(values: torch.Tensor) -> list[torch.Tensor]:
    """Of each part of the numbers: least, largest, sum, sum of squares, and how many are zero; with
    the digest of as many words. As doubles."""
    words = values.view(torch.int32 if values.nbytes % 4 == 0 else torch.uint8).split(_PART)
    numbers = _numbers(values).split(_PART)
    nothing = values.new_zeros((), dtype=torch.float64)
    rows = []
    for at in range(max(len(words), len(numbers))):
        digest = _digest(words[at], at) if at < len(words) else nothing
        figures = [nothing] * (_FIGURES - 1)
        if at < len(numbers):
            wide = numbers[at].double()
            zeros = (wide == 0).sum(dtype=wide.dtype)
            figures = [*wide.aminmax(), wide.sum(), wide.dot(wide), zeros]
        rows.append(torch.stack((*figures, digest)))
    return rows


def _numbers(values: torch.Tensor) -> torch.Tensor:
    """As types for which PyTorch has kernels."""
    if values.is_complex():
        return torch.view_as_real(values).reshape(-1)
    if values.is_floating_point() and values.element_size() == 1:
        packed = values.dtype == getattr(torch, "float4_e2m1fn_x2", None)
        return values.view(torch.uint8) if packed else values.float()
    return values.view(torch.uint8) if values.dtype == torch.bool else values


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
    digest = (words * factors[:count]).sum()
    return (digest * (2 * at + 1) if at else digest).view(torch.float64)


def _values(
    name: str,
    tensor: torch.Tensor,
    values: torch.Tensor,
    figures: list[list[float]],
    digests: list[int],
) -> TensorValues:
    """``figures``, ``digests``: as ``_rows`` returns them."""
    shape, numbers = tuple(tensor.shape), _numbers(values)
    least, largest, sums, squares, zeros, _ = zip(
        *figures[: -(-numbers.numel() // _PART)], strict=True
    )
    finite, nans, first = numbers.numel(), 0, None
    minimum: float | None = min(least)
    maximum: float | None = max(largest)
    total, square, zero = sum(sums), sum(squares), int(sum(zeros))
    if not math.isfinite(total):
        bad = numbers.isnan()
        nans = int(bad.sum())
        bad = bad if nans else numbers.isinf()
        at = int(bad.int().argmax()) // (2 if values.is_complex() else 1)
        first = _index(at, shape) if bool(bad.any()) else None
        kept = numbers[numbers.isfinite()].double()
        finite, zero = kept.numel(), int((numbers == 0).sum())
        minimum, maximum = (kept.min().item(), kept.max().item()) if finite else (None, None)
        total, square = kept.sum().item(), kept.dot(kept).item()
    words = values.nbytes // 4 if values.nbytes % 4 == 0 else values.nbytes
    return TensorValues(
        name,
        str(tensor.dtype).removeprefix("torch."),
        shape,
        minimum,
        maximum,
        _known(total / finite) if finite else None,
        _known(math.sqrt(square)) if finite else None,
        zeros=zero,
        nans=nans,
        infinities=numbers.numel() - finite - nans,
        first=first,
        digest=(sum(digests) + words + (1 << 63)) % (1 << 64) - (1 << 63),
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
