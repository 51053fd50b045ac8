"""Small statistics for noisy timings: middles, spreads, and how far chance alone goes."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import NamedTuple

RESAMPLES = 4000
CONFIDENCE = 0.95
_MOST_ALIKE = 0.95
_LEAST_FREEDOM = 2
_FEWEST, _FEWEST_SHARE = 5, 0.1
"""A level has at least so many values, and such a share of all: fewer may be outliers."""
_SEPARATE = 7.0
_APART = 0.005
"""Two captures of the same code differ by so much; levels that are closer are not reported."""


def spread(values: Sequence[float]) -> float | None:
    """Relative half-width of the middle half: (q3 - q1) / 2 / median; None for fewer than 4."""
    if len(values) < 4:
        return None
    ordered = sorted(values)
    middle = median(ordered)
    if middle == 0:
        return 0.0
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 2 / middle


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], seed: int = 0
) -> tuple[float, float]:
    """95% percentile bootstrap of median(numerator) / median(denominator).

    The samples are paired by round, and rounds are resampled whole, so that what drifts with the
    round falls on both sides (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13).
    On a shared host eager may stay slow for many rounds in a row. Such rounds say less than
    independent ones, so the interval is widened.
    """
    count = min(len(numerator), len(denominator))
    if count == 0:
        raise ValueError("no rounds to resample")
    draw = random.Random(seed)
    rounds = range(count)
    # With an even count the median is the mean of the middle two, as in the figure next to it.
    below, above = (count - 1) // 2, count // 2
    ratios = []
    for _ in range(RESAMPLES):
        chosen = draw.choices(rounds, k=count)
        tops = sorted(numerator[number] for number in chosen)
        bottoms = sorted(denominator[number] for number in chosen)
        top, bottom = tops[below] + tops[above], bottoms[below] + bottoms[above]
        ratios.append(top / bottom if bottom else float("inf"))
    ratios.sort()
    tail = round((1 - CONFIDENCE) / 2 * RESAMPLES)
    low, high = ratios[tail], ratios[-1 - tail]
    center = ratios[RESAMPLES // 2]
    pairs = list(zip(numerator, denominator, strict=False))
    if not 0 < low <= high < math.inf or min(map(min, pairs)) <= 0:
        return low, high
    wider = _lasting([math.log(top) - math.log(bottom) for top, bottom in pairs])
    return center * (low / center) ** wider, center * (high / center) ** wider


def _lasting(values: Sequence[float]) -> float:
    """The factor by which the standard error of the middle exceeds that of independent values. The
    values are taken for a first-order autoregression with the correlation of neighbors, corrected
    for its bias with few values (Kendall, Biometrika 1954). Student's quantile allows for the small
    number of independent values.

    Of 30 rounds whose neighbors correlate by 0.5 and 0.8, 95% and 90% of the intervals hold the
    ratio (simulated); without Student's quantile it is 93% and 86%. Thirty rounds say too little
    about a correlation of 0.8 for more.
    """
    count = len(values)
    middle = fmean(values)
    off = [value - middle for value in values]
    squares = sum(value * value for value in off)
    if count < 4 or not squares:
        return 1.0
    alike = sum(left * right for left, right in pairwise(off)) / squares
    alike = min(max(alike + (1 + 3 * alike) / count, 0.0), _MOST_ALIKE)
    shrinkage = (1 - alike) / (1 + alike)
    tail, freedom = (1 - CONFIDENCE) / 2, max(_LEAST_FREEDOM, round(count * shrinkage) - 1)
    return student(tail, freedom) / student(tail, count - 1) / math.sqrt(shrinkage)


def drift(values: Sequence[float]) -> float:
    """Relative change of the median from the first third of the rounds to the last."""
    third = len(values) // 3
    if third < 2:
        return 0.0
    first, last = median(values[:third]), median(values[-third:])
    return (last - first) / first if first else 0.0


class Levels(NamedTuple):
    """Two values around which all others lie."""

    low: float
    high: float
    at_high: tuple[bool, ...]
    """For each value, in order."""


def two_levels(values: Sequence[float]) -> Levels | None:
    """The two levels of a series, if it has two; order plays no part.

    Of all ways to cut the sorted values in two, the one is taken whose medians are furthest apart
    for how far values lie from the median of their side. They must be ``_SEPARATE`` times the sum
    of these mean deviations apart, and half a percent. Noise with one level, however heavy its
    tails, and drift stay below that: `benchmarks/time_gate.py --simulate` counts how often.
    """
    count = len(values)
    fewest = max(_FEWEST, math.ceil(_FEWEST_SHARE * count))
    ordered = sorted(values)
    sums = [0.0, *accumulate(ordered)]

    def middle(start: int, end: int) -> float:
        return (ordered[(start + end - 1) // 2] + ordered[(start + end) // 2]) / 2

    def deviation(start: int, end: int) -> float:
        half = (end - start) // 2
        above, below = sums[end] - sums[end - half], sums[start + half] - sums[start]
        return max(0.0, above - below) / (end - start)

    best, chosen = _SEPARATE, None
    for cut in range(fewest, count - fewest + 1):
        low, high = middle(0, cut), middle(cut, count)
        noise = max(deviation(0, cut) + deviation(cut, count), 1e-9 * abs(high))
        if high - low > max(best * noise, _APART * low):
            best = (high - low) / noise
            chosen = Levels(low, high, tuple(value >= ordered[cut] for value in values))
    return chosen


def midmean(values: Sequence[float]) -> float:
    """Mean of the middle half: as deaf to outliers as a median, and less noisy. The values at the
    two edges count in part, so that it does not jump with the count."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        raise ValueError("no values")
    low, high = count / 4, 3 * count / 4
    weights = (max(0.0, min(place + 1, high) - max(place, low)) for place in range(count))
    return sum(weight * value for weight, value in zip(weights, ordered, strict=True)) / (
        high - low
    )


@functools.cache
def student(tail: float, freedom: int) -> float:
    """The value that Student's t with so many degrees of freedom exceeds with chance ``tail``.

    By bisection on the finite series for whole degrees of freedom (Abramowitz and Stegun,
    Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
    """
    if not 0 < tail < 0.5 or freedom < 1:
        raise ValueError(f"no quantile of Student's t for {tail} and {freedom}")
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if (1 - _central(middle, freedom)) / 2 > tail:
            low = middle
        else:
            high = middle
    return math.tan((low + high) / 2) * math.sqrt(freedom)


def _central(angle: float, freedom: int) -> float:
    """Chance that abs(t) is below tan(angle) * sqrt(freedom)."""
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = sine * (cosine if odd else 1.0)
    total = term if freedom > 1 else 0.0
    for step in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    return 2 / math.pi * (angle + total) if odd else total


def rank_sum(low: Sequence[float], high: Sequence[float]) -> float:
    """One-sided p value of Wilcoxon's rank sum: that ``high`` lies so far above ``low`` by chance.

    Exact: every order of the values is as likely as any other where both come from one
    distribution. Ties count against a difference.
    """
    above = sum(value > lower for value in high for lower in low)
    ways = _orders(len(low), len(high))
    return sum(ways[above:]) / sum(ways)


@functools.cache
def _orders(count: int, other: int) -> list[int]:
    """In how many orders of ``count`` and ``other`` values so many pairs are the wrong way round:
    the coefficients of the Gaussian binomial (Mann and Whitney 1947)."""
    size = count * other + 1
    ways = [1] + [0] * (size - 1)
    for step in range(1, other + 1):
        for place in range(size - 1, count + step - 1, -1):
            ways[place] -= ways[place - count - step]
        for place in range(step, size):
            ways[place] += ways[place - step]
    return ways
