"""Two tensors held against each other, and how much they may differ.

The tolerance is not a guess: it is what eager differs from itself by, run to run, from the same
state. Where eager is deterministic, equal means equal to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from cgtool.jobs.verify.state import dense, raw, same_bits

SLACK = 2.0
"""A replay may be this many times as far from the nearest eager run as these are from each other:
the largest distance of a few runs is not the largest that there is."""
_CHUNK = 1 << 24

Values = dict[tuple[str, str], torch.Tensor]
"""What a run left, by (kind, name)."""


class Difference(NamedTuple):
    """Of two tensors."""

    largest: float | None
    """Largest absolute difference; None when one is not a number where the other is."""
    exact: bool
    """No bit differs."""


EQUAL = Difference(0.0, True)


def difference(one: torch.Tensor, other: torch.Tensor) -> Difference:
    """NaN equals NaN, an infinity equals itself."""
    with raw():
        one, other = dense(one), dense(other).to(one.device)
        if one.shape != other.shape or one.dtype != other.dtype:
            return Difference(None, False)
        if same_bits(one, other):
            return EQUAL
        largest = 0.0
        wide = torch.complex128 if one.is_complex() else torch.float64
        for part, against in zip(
            one.reshape(-1).split(_CHUNK), other.reshape(-1).split(_CHUNK), strict=True
        ):
            a, b = part.to(wide), against.to(wide)
            if bool((a.isnan() != b.isnan()).any()):
                return Difference(None, False)
            apart = torch.where((a == b) | a.isnan(), 0.0, (a - b).abs())
            largest = max(largest, float(apart.max()))
        return Difference(largest if math.isfinite(largest) else None, False)


def magnitude(tensor: torch.Tensor) -> float:
    """Largest finite absolute value; 0 for none."""
    with raw():
        flat = dense(tensor).reshape(-1)
        largest = 0.0
        for part in flat.split(_CHUNK):
            wide = part.abs() if part.is_complex() else part.to(torch.float64).abs()
            finite = wide[wide.isfinite()]
            if finite.numel():
                largest = max(largest, float(finite.max()))
        return largest


def spread(runs: Sequence[torch.Tensor]) -> Difference:
    """The largest difference of any two runs."""
    worst = EQUAL
    for index, one in enumerate(runs):
        for other in runs[:index]:
            found = difference(one, other)
            if found.largest is None:
                return found
            worst = Difference(
                max(worst.largest or 0.0, found.largest), worst.exact and found.exact
            )
    return worst


def nearest(runs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Difference:
    """The difference to the run that is nearest."""
    found = [difference(one, tensor) for one in runs]
    return min(
        found, key=lambda one: (not one.exact, math.inf if one.largest is None else one.largest)
    )


def dense_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """As float64; the real part of complex numbers."""
    plain = dense(tensor)
    return (plain.real if plain.is_complex() else plain).to(torch.float64)


def is_finite(tensor: torch.Tensor) -> bool:
    """No NaN and no infinity in it."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    with raw():
        return bool(dense(tensor).isfinite().all())
