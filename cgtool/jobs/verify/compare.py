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
    """The difference of two tensors."""

    largest: float | None
    """Largest absolute difference; None when one has a NaN where the other does not."""
    exact: bool
    """No bit differs."""


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
    """The largest difference of any two runs."""
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
    """No NaN and no infinity in it."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    with raw():
        return bool(dense(tensor).isfinite().all())


TOO_NOISY = 0.1
"""Where eager runs differ by more than this part of the largest value, equality proves nothing."""


@dataclass
class TrialResult:
    """A trial with its runs and comparisons."""

    trial: Trial
    eager: list[Run]
    replay: Run
    comparisons: list[Comparison] = field(default_factory=list)
    differing: list[tuple[int, Comparison]] = field(default_factory=list)
    """(iteration from 0, comparison) of all tensors that differ."""
    noisy: list[Comparison] = field(default_factory=list)
    only_eager: set[str] = field(default_factory=set)
    """State that eager iterations create and that cannot be reached after replays."""

    def accepting(self, keys: set[tuple[str, str]]) -> TrialResult:
        """The same result without these (kind, name), which are reported elsewhere."""
        if not keys:
            return self
        return replace(
            self,
            comparisons=[
                comparison
                for comparison in self.comparisons
                if (comparison.kind, comparison.name) not in keys
            ],
            differing=[
                comparison
                for comparison in self.differing
                if (comparison[1].kind, comparison[1].name) not in keys
            ],
            noisy=[
                comparison
                for comparison in self.noisy
                if (comparison.kind, comparison.name) not in keys
            ],
        )

    @property
    def exact(self) -> bool:
        return all(comparison.exact for comparison in self.comparisons)


def compare_runs(
    runner: TrialRunner,
    trial: Trial,
    eager: list[Run],
    replay: Run,
    *,
    noise_counts: bool = True,
    rounding: list[Run] | None = None,
) -> TrialResult:
    """Compare every tensor of every iteration.

    ``noise_counts``: eager runs differ by chance, not because the host changes a number.
    ``rounding``: eager runs with inputs changed in the last bit, for replays that may use other
    kernels.
    """
    base = runner.base(trial)
    result = TrialResult(trial, eager, replay)
    for number in range(trial.iterations):
        keys = dict.fromkeys(key for run in (*eager, replay) for key in run.values[number])
        for kind, name in keys:
            sides = [_value(run, number, kind, name, base) for run in eager]
            expected = [value for value in sides if value is not None]
            replayed = _value(replay, number, kind, name, base)
            if replayed is None and kind == "state":
                result.only_eager.add(name)
                continue
            if replayed is None or not expected:
                if kind != "state":
                    one = Comparison(
                        name, kind, trial.iteration(number), equal=False, tolerance=0.0, noise=0.0
                    )
                    result.comparisons.append(one)
                    result.differing.append((number, one))
                continue
            rounded = [
                value
                for run in rounding or ()
                if (value := _value(run, number, kind, name, base)) is not None
            ]
            comparison = _compare(
                expected if noise_counts else expected[:1],
                replayed,
                rounded,
                kind,
                name,
                trial.iteration(number),
            )
            result.comparisons.append(comparison)
            if not comparison.equal:
                result.differing.append((number, comparison))
            elif _too_noisy(comparison, expected[0]):
                result.noisy.append(comparison)
    return result


def _value(
    run: Run, number: int, kind: str, name: str, base: dict[str, torch.Tensor]
) -> torch.Tensor | None:
    value = run.values[number].get((kind, name))
    if value is None and kind == "state" and name in run.names:
        # A run keeps the state that it changed.
        return base.get(name)
    return value


def _compare(
    expected: list[torch.Tensor],
    replayed: torch.Tensor,
    rounding: list[torch.Tensor],
    kind: str,
    name: str,
    trial: str,
) -> Comparison:
    noise = spread(expected)
    distance = nearest(expected, replayed)
    allowed = 0.0 if noise.largest is None else SLACK * noise.largest
    if not distance.exact and rounding:
        moved = [difference(expected[0], value).largest for value in rounding]
        allowed = max(allowed, *(SLACK * value for value in moved if value is not None), 0.0)
    return Comparison(
        name=name,
        kind=kind,
        trial=trial,
        equal=distance.exact or (distance.largest is not None and distance.largest <= allowed),
        exact=distance.exact,
        largest=distance.largest,
        relative=_relative(distance, expected[0]),
        tolerance=allowed,
        noise=noise.largest,
    )


def _relative(distance: Difference, expected: torch.Tensor) -> float | None:
    if distance.exact:
        return 0.0
    if distance.largest is None:
        return None
    largest = magnitude(expected)
    return distance.largest / largest if largest else None


def _too_noisy(comparison: Comparison, expected: torch.Tensor) -> bool:
    if comparison.exact or not comparison.noise:
        return False
    return comparison.noise > TOO_NOISY * magnitude(expected)
