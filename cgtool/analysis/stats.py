"""Small statistics for noisy timings: median, spread, and an interval on a ratio of medians."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

RESAMPLES = 4000
CONFIDENCE = 0.95


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
    """95 % percentile bootstrap of median(numerator) / median(denominator).

    The samples are paired by round, and rounds are resampled whole, so that what drifts with the
    round falls on both sides (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13).
    """
    count = min(len(numerator), len(denominator))
    if count == 0:
        raise ValueError("no rounds to resample")
    draw = random.Random(seed)
    rounds = range(count)
    # Of an even count the median is the mean of the middle two, as in the figure beside it.
    below, above = (count - 1) // 2, count // 2
    ratios = []
    for _ in range(RESAMPLES):
        chosen = draw.choices(rounds, k=count)
        tops = sorted(numerator[one] for one in chosen)
        bottoms = sorted(denominator[one] for one in chosen)
        top, bottom = tops[below] + tops[above], bottoms[below] + bottoms[above]
        ratios.append(top / bottom if bottom else float("inf"))
    ratios.sort()
    tail = round((1 - CONFIDENCE) / 2 * RESAMPLES)
    return ratios[tail], ratios[-1 - tail]


def drift(values: Sequence[float]) -> float:
    """Relative change of the median from the first third of the rounds to the last."""
    third = len(values) // 3
    if third < 2:
        return 0.0
    first, last = median(values[:third]), median(values[-third:])
    return (last - first) / first if first else 0.0
