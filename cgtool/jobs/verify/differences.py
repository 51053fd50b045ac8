"""How far tensors are apart, and how large they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import torch

from cgtool.observe.raw_tensors import arithmetic, dense, raw, same_bits

SLACK = 2.0
"""A replay may differ from the nearest eager run by this many times the difference between eager
runs: the largest difference of a few runs is not the largest possible."""
_COARSE = 1e-4
"""Precision of bfloat16 and float16, but not of float32."""
_CHUNK = 1 << 24
_TOP = 1 << 63


class Difference(NamedTuple):
    """The difference between two tensors."""

    largest: int | float | None
    """Largest absolute difference, of integers a Python int; None when one has a NaN or an infinity
    where the other does not."""
    exact: bool
    """True if no bit differs."""


EQUAL = Difference(0.0, True)


def difference(left: torch.Tensor, right: torch.Tensor) -> Difference:
    """NaN equals NaN, an infinity equals itself."""
    with raw():
        if left.is_quantized and right.is_quantized:
            stored = difference(left.int_repr(), right.int_repr())
            values = difference(left.dequantize(), right.dequantize())
            return Difference(values.largest, stored.exact and values.exact)
        right = right.to(left.device)
    with arithmetic():
        left, right = dense(left), dense(right)
        if left.shape != right.shape or left.dtype != right.dtype:
            return Difference(None, False)
        if same_bits(left, right):
            return EQUAL
        largest: int | float = 0
        for part, against in zip(_chunks(left), _chunks(right), strict=True):
            if not is_rounded(left):
                largest = max(largest, _largest_of_integers(part, against))
                continue
            a, b = _wide(part), _wide(against)
            if bool((a.isnan() != b.isnan()).any()):
                return Difference(None, False)
            apart = torch.where((a == b) | a.isnan(), 0.0, (a - b).abs())
            largest = max(largest, float(apart.max()))
        return Difference(largest if math.isfinite(largest) else None, False)


def rounding(dtype: torch.dtype, scale: float) -> float:
    """What other kernels may add to numbers of a type, where those that they are made of have this
    magnitude: some roundings in a row, more of them where a type is fine."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    precision = torch.finfo(dtype).eps
    return (8 if precision > _COARSE else 64) * precision * scale


def apart(tensor: torch.Tensor, expected: torch.Tensor, allowed: float) -> str | None:
    """How a tensor differs from what is expected, by more than is allowed; None if it does not."""
    if (text := mismatch(tensor, expected)) is not None:
        return text
    distance = difference(tensor, expected)
    if distance.exact or (distance.largest is not None and distance.largest <= allowed):
        return None
    with raw():
        expected = expected.to(tensor.device)
    with arithmetic():
        left, right = (dense(each).reshape(-1) for each in (tensor, expected))
        a, b = _wide(left), _wide(right)
        differ = (a.isnan() != b.isnan()) | ((a - b).abs() > allowed)
        number = int(differ.sum())
        if not number:
            return f"largest difference {distance.largest:.3g}"
        first = int(differ.int().argmax())
        index = [int(each) for each in torch.unravel_index(torch.tensor(first), tensor.shape)]
        largest = "" if distance.largest is None else f" by {distance.largest:.3g} at most"
        return (
            f"{number:,} of {left.numel():,} numbers differ{largest}; at {index} first: "
            f"{left[first].item():.6g}, eager {right[first].item():.6g}"
        )


def mismatch(tensor: torch.Tensor, expected: torch.Tensor) -> str | None:
    """``shape [7, 8], not [8, 8]``, or the types if they differ; None if values can be compared."""
    with arithmetic():
        tensor, expected = dense(tensor), dense(expected)
        if tensor.shape != expected.shape:
            return f"shape {list(tensor.shape)}, not {list(expected.shape)}"
        kinds = [str(each.dtype).removeprefix("torch.") for each in (tensor, expected)]
        return None if kinds[0] == kinds[1] else f"{kinds[0]}, not {kinds[1]}"


def _chunks(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    parts: tuple[torch.Tensor, ...] = tensor.reshape(-1).split(_CHUNK)
    return parts


def is_rounded(tensor: torch.Tensor) -> bool:
    """True for types of real and complex numbers; the others are compared exactly."""
    # Two numbers in each byte: no kernel reads them.
    packed = tensor.dtype == getattr(torch, "float4_e2m1fn_x2", None)
    return (tensor.is_floating_point() or tensor.is_complex()) and not packed


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _largest_of_integers(left: torch.Tensor, right: torch.Tensor) -> int:
    if left.dtype in (torch.int64, torch.uint64):
        flip = -_TOP if left.dtype == torch.uint64 else 0
        a, b = left.view(torch.int64) ^ flip, right.view(torch.int64) ^ flip
    elif left.is_floating_point():
        return int(not same_bits(left, right))
    else:
        a, b = left.to(torch.int64), right.to(torch.int64)
    # Modulo 2**64; shifted by half of that, so that int64 orders it as unsigned.
    apart = (torch.maximum(a, b) - torch.minimum(a, b)) ^ -_TOP
    return int(apart.max()) + _TOP


class Size(NamedTuple):
    """The size of finite numbers: root mean square, and the largest magnitude."""

    rms: float
    largest: float


def size_of(tensor: torch.Tensor, exact: torch.Tensor | None = None) -> Size:
    """The size of a tensor's values, or of their differences from ``exact``; zeros if there are
    none."""
    with raw():
        exact = exact if exact is None else exact.to(tensor.device)
    with arithmetic():
        values = dense(tensor)
        if not is_rounded(values):
            values = values.to(torch.float64)
        others = None if exact is None else _chunks(dense(exact))
        squares, count, largest = 0.0, 0, 0.0
        for index, part in enumerate(_chunks(values)):
            wide = _wide(part)
            if others is not None:
                wide = wide - _wide(others[index])
            finite = wide[wide.isfinite()].abs()
            if finite.numel():
                squares += float(finite.square().sum())
                count += finite.numel()
                largest = max(largest, float(finite.max()))
        return Size(math.sqrt(squares / count) if count else 0.0, largest)


def magnitude(tensor: torch.Tensor) -> float:
    """Largest finite absolute value; 0 for none."""
    return size_of(tensor).largest


def spread(runs: Sequence[torch.Tensor]) -> Difference:
    """The largest difference between any two runs."""
    largest: int | float = 0.0
    exact = True
    for run, other in combinations(runs, 2):
        distance = difference(run, other)
        if distance.largest is None:
            return distance
        largest, exact = max(largest, distance.largest), exact and distance.exact
    return Difference(largest, exact)


def nearest(runs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Difference:
    """The smallest difference to any run."""
    distances = [difference(run, tensor) for run in runs]
    return min(
        distances,
        key=lambda distance: (
            not distance.exact,
            math.inf if distance.largest is None else distance.largest,
        ),
    )


def dense_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The values in float64; the real part of complex numbers."""
    plain = dense(tensor)
    return (plain.real if plain.is_complex() else plain).to(torch.float64)
