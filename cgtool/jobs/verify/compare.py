"""Comparison of replays with eager runs, tensor by tensor, and the tolerance.

The tolerance is measured: it is the difference between eager runs from the same state. Where eager
is deterministic, equal means equal to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from cgtool.jobs.verify.runs import Run, Trial, TrialRunner
from cgtool.jobs.verify.state import dense, raw, same_bits
from cgtool.model.finding import Comparison

SLACK = 2.0
"""A replay may differ from the nearest eager run by this many times the difference between eager
runs: the largest difference of a few runs is not the largest possible."""
_CHUNK = 1 << 24


class Difference(NamedTuple):
    """The difference between two tensors."""

    largest: float | None
    """Largest absolute difference; None when one has a NaN where the other does not."""
    exact: bool
    """True if no bit differs."""


EQUAL = Difference(0.0, True)


def difference(left: torch.Tensor, right: torch.Tensor) -> Difference:
    """NaN equals NaN, an infinity equals itself."""
    with raw():
        left, right = dense(left), dense(right).to(left.device)
        if left.shape != right.shape or left.dtype != right.dtype:
            return Difference(None, False)
        if same_bits(left, right):
            return EQUAL
        largest = 0.0
        wide = torch.complex128 if left.is_complex() else torch.float64
        for part, against in zip(
            left.reshape(-1).split(_CHUNK), right.reshape(-1).split(_CHUNK), strict=True
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
    """The largest difference between any two runs."""
    worst = EQUAL
    for index, run in enumerate(runs):
        for earlier in runs[:index]:
            distance = difference(run, earlier)
            if distance.largest is None:
                return distance
            worst = Difference(
                max(worst.largest or 0.0, distance.largest), worst.exact and distance.exact
            )
    return worst


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
    """As float64; the real part of complex numbers."""
    plain = dense(tensor)
    return (plain.real if plain.is_complex() else plain).to(torch.float64)


def is_finite(tensor: torch.Tensor) -> bool:
    """True without a NaN or an infinity."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    with raw():
        return bool(dense(tensor).isfinite().all())


TOO_NOISY = 0.1
"""Where eager runs differ by more than this part of the largest value, equality proves nothing."""


class Compared(NamedTuple):
    """A tensor of one iteration."""

    iteration: int
    """Counted from 0."""
    comparison: Comparison
    too_noisy: bool = False
    """True if it is equal, but eager runs differ so much that this proves nothing."""


@dataclass
class TrialResult:
    """A trial with its runs and comparisons."""

    trial: Trial
    eager: list[Run]
    replay: Run
    compared: list[Compared] = field(default_factory=list)
    only_eager: set[str] = field(default_factory=set)
    """State that eager iterations create and that cannot be reached after replays."""

    @property
    def comparisons(self) -> list[Comparison]:
        return [each.comparison for each in self.compared]

    @property
    def differing(self) -> list[Compared]:
        return [each for each in self.compared if not each.comparison.equal]

    @property
    def noisy(self) -> bool:
        """True if eager runs differ from each other."""
        return any(comparison.noise != 0.0 for comparison in self.comparisons)

    def accepting(self, keys: set[tuple[str, str]]) -> TrialResult:
        """The same result without these (kind, name), which are reported elsewhere."""
        kept = [
            each
            for each in self.compared
            if (each.comparison.kind, each.comparison.name) not in keys
        ]
        return replace(self, compared=kept)


def compare_runs(
    runner: TrialRunner,
    trial: Trial,
    eager: list[Run],
    replay: Run,
    *,
    noise_counts: bool = True,
    rounding: Sequence[Run] = (),
) -> TrialResult:
    """Compare every tensor of every iteration.

    ``noise_counts``: eager runs differ by chance, not because the host changes a number.
    ``rounding``: eager runs with inputs changed in the last bit, for replays that may use other
    kernels.
    """
    base = runner.base(trial)
    result = TrialResult(trial, eager, replay)

    def values_of(runs: Sequence[Run], number: int, key: tuple[str, str]) -> list[torch.Tensor]:
        values = []
        for run in runs:
            value = run.values[number].get(key)
            if value is None and key[0] == "state" and key[1] in run.names:
                # A run returns only the state that it changed.
                value = base.get(key[1])
            if value is not None:
                values.append(value)
        return values

    for number in range(trial.iterations):
        for key in dict.fromkeys(key for run in (*eager, replay) for key in run.values[number]):
            kind, name = key
            expected = values_of(eager, number, key)
            replayed = values_of([replay], number, key)
            if expected and replayed:
                if not noise_counts:
                    del expected[1:]
                rounded = values_of(rounding, number, key)
                comparison = _compare(key, trial.iteration(number), expected, replayed[0], rounded)
                result.compared.append(
                    Compared(number, comparison, _too_noisy(comparison, expected[0]))
                )
            elif kind != "state":
                comparison = Comparison(
                    name, kind, trial.iteration(number), equal=False, tolerance=0.0, noise=0.0
                )
                result.compared.append(Compared(number, comparison))
            elif not replayed:
                result.only_eager.add(name)
    return result


def _compare(
    key: tuple[str, str],
    trial: str,
    expected: list[torch.Tensor],
    replayed: torch.Tensor,
    rounding: list[torch.Tensor],
) -> Comparison:
    noise = spread(expected)
    distance = nearest(expected, replayed)
    allowed = 0.0 if noise.largest is None else SLACK * noise.largest
    relative = 0.0 if distance.exact else None
    if not distance.exact:
        moved = [difference(expected[0], value).largest for value in rounding]
        allowed = max(allowed, *(SLACK * value for value in moved if value is not None), 0.0)
        if distance.largest is not None and (scale := magnitude(expected[0])):
            relative = distance.largest / scale
    return Comparison(
        name=key[1],
        kind=key[0],
        trial=trial,
        equal=distance.exact or (distance.largest is not None and distance.largest <= allowed),
        exact=distance.exact,
        largest=distance.largest,
        relative=relative,
        tolerance=allowed,
        noise=noise.largest,
    )


def _too_noisy(comparison: Comparison, expected: torch.Tensor) -> bool:
    if comparison.exact or not comparison.equal or not comparison.noise:
        return False
    return comparison.noise > TOO_NOISY * magnitude(expected)
