"""Error rates of the answers on times, over runs that are made up: `time_gate.py --simulate`.

Far more comparisons than one could measure, and all independent. Three tables:

- **Unequal sides**: normal noise, 3 to 20 runs on each side, and one side spreads 1 to 20 times as
  much as the other. The same code must not be called slower, and code that is slower by just the
  tolerance must not be called not slower: both are as close to the border as can be.
- **Other noise**: equal sides, noise that is not normal, and a baseline as `cgtool gate` makes it.
- **Two levels**: how often `cgtool bench` says that rounds took one of two times. Noise with one
  level and drift must not be called so; two levels must be found.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cgtool.analysis.timing import regression, stats
from cgtool.analysis.timing.regression import (
    ALARM,
    CANNOT_TELL,
    ENOUGH,
    MISS,
    NOT_SLOWER,
    SLOWER,
    TOLERANCE,
    judge_runs,
    planned_looks,
    wanted,
)
from cgtool.model.options import FIRST_RUNS, MAX_RUNS

Floats = NDArray[np.float64]
Runs = list[list[float]]

COUNTS = (3, 5, 10, 20)
RATIOS = (1.0, 1.5, 3.0, 8.0, 20.0)
COMPARISONS, DETECTIONS = 3000, 100
"""For each pair of counts and ratio: for the rates of errors, and of slowdowns found."""
NOISY = 0.01
"""Relative standard deviation of the noisier side where a slowdown of ``PLANTED`` is planted."""
PLANTED = 0.03
ALIKE, FOUND = 1000, 0.9
"""Comparisons of a row of the second table, and the share of slowdowns that should be found."""
NOTES = 1 / 200
"""Series with one level that may be said to have two."""


def simulate(comparisons: int = COMPARISONS) -> dict[str, list[dict[str, Any]]]:
    """Both tables."""
    # How many more runs would decide takes most of the time of an answer.
    regression._needed = lambda *_: None
    return {
        "unequal sides": unequal_sides(comparisons),
        "other noise": other_noise(),
        "two levels": two_levels(comparisons),
    }


def missed(figures: dict[str, list[dict[str, Any]]], comparisons: int = COMPARISONS) -> list[str]:
    """The rates that are not as promised, in words."""
    sentences = []
    for row in figures["unequal sides"]:
        for name, allowed in (("alarms", ALARM), ("misses", MISS)):
            if not _consistent(row[name], comparisons, allowed):
                sentences.append(f"{name} of {row['base']} and {row['head']} runs: {row[name]:.2%}")
    for row in figures["other noise"]:
        if row["planted"] and row["slower"] < FOUND * ALIKE:
            sentences.append(f"{row['runs spread']}: only {row['slower']} slowdowns found")
        if not row["planted"] and row["slower"] > ALARM * ALIKE:
            sentences.append(f"{row['runs spread']}: {row['slower']} alarms")
    for row in figures["two levels"]:
        for rounds, rate in list(row.items())[1:]:
            if row["rounds"].startswith("two") and rounds != "10" and rate < FOUND:
                sentences.append(f"{row['rounds']}: found in {rate:.0%} of {rounds}")
            if not row["rounds"].startswith("two") and not _consistent(rate, comparisons, NOTES):
                sentences.append(f"{row['rounds']}: noted in {rate:.2%} of {rounds}")
    return sentences


def _consistent(rate: float, of: int, allowed: float) -> bool:
    """Whether a rate may be ``allowed`` and have come out higher by chance, 1 time in 30,000."""
    return rate <= allowed + 4 * math.sqrt(allowed / of)


# --- unequal sides


def unequal_sides(comparisons: int) -> list[dict[str, Any]]:
    """By the numbers of runs: the highest rates of errors over all ratios of spreads, where it was,
    and how many slowdowns are found."""
    draw = np.random.default_rng(0)
    ratios = sorted({*RATIOS, *(1 / ratio for ratio in RATIOS)})
    rows = []
    for base, head in product(COUNTS, COUNTS):
        alarms, misses, found = {}, {}, {}
        for ratio in ratios:
            left, right = (draw.standard_normal((comparisons, count)) for count in (base, head))
            # The smallest is larger than any spread that the rules assume.
            spreads = 0.02 * max(1.0, 1 / ratio), 0.02 * max(1.0, ratio)
            left, right = left * spreads[0], right * spreads[1]
            alarms[ratio] = _rate(SLOWER, left, right, 0.0)
            misses[ratio] = _rate(NOT_SLOWER, left, right + math.log1p(TOLERANCE), TOLERANCE)
            if ratio not in (min(ratios), 1.0, max(ratios)):
                continue
            scale = NOISY / max(spreads)
            some = slice(0, DETECTIONS)
            slower = scale * right[some] + math.log1p(PLANTED)
            answers = [*map(_answer, scale * left[some], slower, [TOLERANCE] * DETECTIONS)]
            found[ratio] = answers.count(SLOWER) / DETECTIONS
        worst = max(alarms, key=alarms.__getitem__)
        rows.append(
            {
                "base": base,
                "head": head,
                "alarms": alarms[worst],
                "at ratio": f"{worst:g}",
                "misses": max(misses.values()),
                "found 20:1": found[min(ratios)],
                "1:1": found[1.0],
                "1:20": found[max(ratios)],
            }
        )
    return rows


def _looks(head: int) -> tuple[int, ...]:
    return planned_looks(min(FIRST_RUNS, head), head)


def _answer(base: Floats, head: Floats, tolerance: float) -> str:
    """The verdict after as many looks as it takes."""
    looks = _looks(len(head))
    bases = [[math.exp(log)] for log in base]
    heads = [[math.exp(log)] for log in head]
    for look in looks:
        verdict = judge_runs(bases, heads[:look], tolerance, looks=len(looks)).verdict
        if verdict != CANNOT_TELL:
            break
    return verdict


def _rate(wrong: str, base: Floats, head: Floats, tolerance: float) -> float:
    """The share of comparisons (rows) with this verdict.

    Only those are judged whose sides are further apart, at some look, than a normal quantile of the
    level allows: every interval is wider than that.
    """
    looks = _looks(head.shape[1])
    sign, level = (1, ALARM) if wrong == SLOWER else (-1, MISS)
    least = NormalDist().inv_cdf(1 - level / len(looks))
    chosen = np.zeros(len(base), dtype=bool)
    for look in looks:
        seen = head[:, :look]
        error = np.sqrt(base.var(1, ddof=1) / base.shape[1] + seen.var(1, ddof=1) / look)
        apart = seen.mean(1) - base.mean(1) - math.log1p(tolerance)
        chosen |= sign * apart > least * error
    answers = [_answer(base[row], head[row], tolerance) for row in np.flatnonzero(chosen)]
    return answers.count(wrong) / len(base)


# --- other noise


def other_noise() -> list[dict[str, Any]]:
    """Runs around two values, or with a long tail."""
    draw = random.Random(0)
    noises: dict[str, Callable[[], float]] = {
        "0.35%": lambda: draw.gauss(0, 0.0035),
        "1.2%": lambda: draw.gauss(0, 0.012),
        "two values": lambda: draw.gauss(0, 0.001) + 0.02 * draw.randrange(2),
        "long tail": lambda: draw.gauss(0, 0.0035) + 0.04 * (draw.random() < 0.02),
    }
    looks = planned_looks(FIRST_RUNS, MAX_RUNS)
    rows = []
    for name, noise in noises.items():
        for planted in (0.0, PLANTED):
            verdicts: Counter[str] = Counter()
            runs = 0
            for _ in range(ALIKE):
                before = baseline([[1 + noise()] for _ in range(MAX_RUNS)])
                after = [[(1 + planted) * (1 + noise())] for _ in range(MAX_RUNS)]
                for look in looks:
                    answer = judge_runs(before, after[:look], TOLERANCE, looks=len(looks))
                    if answer.verdict != CANNOT_TELL:
                        break
                verdicts[answer.verdict] += 1
                runs += look
            rows.append(
                {"runs spread": name, "planted": planted, **counts(verdicts), "runs": runs / ALIKE}
            )
    return rows


# --- two levels


def two_levels(comparisons: int) -> list[dict[str, Any]]:
    """How often so many rounds are said to have two levels."""
    draw = np.random.default_rng(0)

    def normal(*shape: int) -> Floats:
        return draw.standard_normal(shape)

    def changing(count: int, apart: float) -> Floats:
        """From one level to the other and back, with a round between them at each change."""
        level = (np.arange(count) + draw.integers(count, size=(comparisons, 1))) * 4 // count % 2
        before = np.roll(level, 1, axis=1)
        return apart * (level + before) / 2 + normal(comparisons, count)

    def alike(count: int) -> Floats:
        """Neighbors correlate by 0.9."""
        series = [normal(comparisons)]
        while len(series) < count:
            series.append(0.9 * series[-1] + math.sqrt(1 - 0.9**2) * normal(comparisons))
        return np.stack(series, 1)

    noises: dict[str, Callable[[int], Floats]] = {
        "normal": lambda count: normal(comparisons, count),
        "uniform": lambda count: 10 * draw.random((comparisons, count)),
        "Student's t, 2 degrees": lambda count: draw.standard_t(2, (comparisons, count)),
        "log-normal": lambda count: draw.lognormal(0, 1, (comparisons, count)),
        "1 in 10 is 10 times as far off": lambda count: (
            normal(comparisons, count)
            + draw.exponential(10, (comparisons, count)) * (draw.random((comparisons, count)) < 0.1)
        ),
        "correlated": alike,
        "random walk": lambda count: np.cumsum(normal(comparisons, count), 1),
        "steady drift": lambda count: np.linspace(0, 20, count) + normal(comparisons, count),
        "drift that ends": lambda count: (
            20 * np.exp(-5 * np.arange(count) / count) + normal(comparisons, count)
        ),
        "wave": lambda count: (
            10 * np.sin(0.4 * np.arange(count) + 6.3 * draw.random((comparisons, 1)))
            + normal(comparisons, count)
        ),
        "two levels, 15 deviations apart": lambda count: (
            normal(comparisons, count) + 15 * (np.arange(count) >= count // 2)
        ),
        "two levels, 90 deviations apart, and rounds between": lambda count: changing(count, 90),
    }
    return [
        {
            "rounds": name,
            **{
                # A deviation is a percent, so none is too small to be noted.
                f"{count}": sum(
                    stats.two_levels(row) is not None for row in (100 + noise(count)).tolist()
                )
                / comparisons
                for count in (10, 30, 100)
            },
        }
        for name, noise in noises.items()
    ]


def baseline(runs: Sequence[list[float]]) -> Runs:
    """The first of these, as many as ``cgtool gate --save-baseline`` would have made."""
    count = ENOUGH
    while (more := min(wanted(runs[:count]), MAX_RUNS, len(runs))) > count:
        count = more
    return list(runs[:count])


def counts(verdicts: Counter[str]) -> dict[str, int]:
    return {
        "slower": verdicts[SLOWER],
        "not slower": verdicts[NOT_SLOWER],
        "cannot tell": verdicts[CANNOT_TELL],
    }
