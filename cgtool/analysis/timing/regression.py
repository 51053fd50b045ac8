"""Slower, not slower, or cannot tell: the comparison of two sets of times.

Two measurements of the same code differ mostly because its memory lies elsewhere. On an H200 the
rounds of a capture spread by 0.05% to 0.1%, first captures of processes by 0.3% to 1.4%, and
captures that follow others in a process by up to 7%. So a round is not a unit of evidence. Between
processes the unit is a run: a fresh worker process with its first capture. Inside one process it is
a pair of captures, one of each side, made one right after the other.

``judge_runs`` says "slower" when two tests agree, each of which covers what the other assumes:

- The lower end of an interval on the log of the ratio lies beyond the tolerance. Each side has its
  own spread and degrees of freedom, and the Student intervals of both are added in quadrature (Zou
  and Donner, Statistics in Medicine 2008, the method of variance estimates recovery). It assumes
  normal noise. Welch's interval with Satterthwaite's degrees of freedom does not keep such levels
  with few runs: three runs that happen to agree beside twenty make three times as many errors as a
  level of 1 in 200 allows, and seven times as many as one of 1 in 800.
- Wilcoxon's rank sum of the runs is beyond its level. It is exact whatever the distribution of the
  noise (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, chapter 4), if both sides
  have the same. It can only take an alarm away, so it does no harm if they have not. With fewer
  runs than it needs, a spread of ``PRIOR`` is assumed.

`benchmarks/time_gate.py --simulate` counts the errors: A against A is called slower at most once in
200 times, with 3 to 20 runs on each side, of which one spreads up to 20 times as much as the other.

Levels are divided by the number of looks (Bonferroni), so measuring on after "cannot tell" does not
add false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from cgtool.analysis.timing.stats import midmean, rank_sum, student
from cgtool.model.options import MAX_RUNS

ALARM = 1 / 200
"""Chance that A against A is called slower, over all looks."""
MISS = 1 / 20
"""Chance that what is slower by more than the tolerance is called not slower, over all looks."""
LOOKS = 4
TOLERANCE, PAIR_TOLERANCE = 0.01, 0.002
"""For runs and for pairs: a slowdown up to this is not called slower. On an H200, 3% is then found
between runs and 0.5% between pairs, and no change is called no change."""
PRIOR = 0.014
"""Relative standard deviation that is assumed if there are too few runs to know it: the largest
seen on an H200 (26 processes of a transformer)."""
FLOOR = 1e-4
"""Smallest relative standard deviation that is assumed: the timer's share of a round."""
_MARGIN = 0.9
"""Share of the error rates that the interval of runs is computed for: the sum of squares of two
Student intervals exceeds its own level by up to a twentieth (simulated)."""
FEW = 2
"""Degrees of freedom below which the spread of the runs is unknown."""
ENOUGH = 10
"""Minimum number of runs of a baseline."""
BASELINE_ERROR = 0.25
"""Standard error that the middle of a baseline's runs should have, as a share of the tolerance."""
SEARCH = 200
"""Upper end of the search for the number of further units that would decide."""

SLOWER, NOT_SLOWER, CANNOT_TELL = "slower", "not-slower", "cannot-tell"


class Answer(msgspec.Struct, frozen=True):
    """The answer for one time. Ratios are head over base: 1.03 is 3% slower."""

    verdict: str
    """``slower``, ``not-slower`` or ``cannot-tell``."""
    ratio: float
    low: float
    """At most 1 in 200 that the ratio is below, over all looks."""
    high: float
    """At most 1 in 20 that the ratio is above, over all looks."""
    tolerance: float
    unit: str
    """``run`` or ``pair``."""
    base: int
    """Units of each side that had a time."""
    head: int
    spread: float | None
    """Relative standard deviation of a unit, of runs that of the noisier side; None when there are
    too few to know."""
    needed: int | None
    """More units of head (pairs: of both) that would decide if the times go on like this; None if
    no number would, 0 if it is decided."""
    counted: str
    """``10 and 5 runs``."""
    remedy: str
    """A sentence on how to decide it; empty if it is decided."""
    text: str
    """The answer in one sentence."""


def judge_runs(
    base: Sequence[Sequence[float]],
    head: Sequence[Sequence[float]],
    tolerance: float,
    *,
    looks: int = LOOKS,
    among: int = 1,
) -> Answer:
    """Times of separate processes: one inner sequence a run, its rounds in any unit.

    ``tolerance`` is relative (0.01). ``looks`` is how often this is called at most, with more runs
    each time, and ``among`` how many such answers a verdict rests on. Rounds that are not positive
    finite numbers are left out, and runs without any.
    """
    bases, heads = _units(base, midmean), _units(head, midmean)
    count, more = len(bases), len(heads)
    if not count or not more:
        return _nothing("run", count, more, tolerance)
    levels = _Levels(tolerance, looks * among / _MARGIN)
    before, now = _Noise.of(bases, base, count + more), _Noise.of(heads, head, count + more)
    difference = fmean(heads) - fmean(bases)
    apart = rank_sum(bases, heads) <= levels.alarm

    def interval(further: int) -> tuple[float, float]:
        """With so many further runs of head; 0: of these runs, rather than a prediction."""
        total = count + more + further

        def reach(tail: float) -> float:
            return math.hypot(before.reach(tail), now.reach(tail, further))

        low, high = difference - reach(levels.alarm), difference + reach(levels.miss)
        if math.comb(total, count) * levels.alarm < 1:
            scale = math.sqrt(1 / count + 1 / (more + further))
            assumed = student(levels.alarm, max(FEW, total - 2)) * PRIOR * scale
            low = min(low, difference - assumed)
        elif further == 0 and not apart:
            low = min(low, levels.limit)
        return low, high

    known = min(count, more) > FEW
    return _answer(
        "run", levels, difference, interval, count, more,
        max(before.spread, now.spread) if known else None,
        _wanted(before.spread, tolerance) if count > FEW else ENOUGH,
    )  # fmt: skip


class _Noise(NamedTuple):
    """The noise of one side, estimated from its runs, on the log scale."""

    number: int
    """How many runs."""
    spread: float
    """Standard deviation of a run."""
    freedom: int
    """Degrees of freedom that the spread is known with."""

    @classmethod
    def of(cls, logs: Sequence[float], runs: Sequence[Sequence[float]], total: int) -> _Noise:
        """``logs`` are the middles of ``runs``, and ``total`` is the runs of both sides. Runs
        differ by at least as much as their rounds say."""
        spread = max(math.sqrt(_variance(logs)), fmean(map(_own_noise, runs)), FLOOR)
        if len(logs) > FEW:
            return cls(len(logs), spread, len(logs) - 1)
        return cls(len(logs), max(spread, PRIOR), max(FEW, total - 2))

    def reach(self, tail: float, further: int = 0) -> float:
        """How far the middle may be off by chance, on one side, with so many further runs."""
        count = self.number + further
        freedom = max(FEW, count - 1) if further else self.freedom
        return student(tail, freedom) * self.spread / math.sqrt(count)


def judge_pairs(
    base: Sequence[Sequence[float]], head: Sequence[Sequence[float]], tolerance: float
) -> Answer:
    """Times of one process: one inner sequence a capture, its rounds; the captures at one index
    were made and measured one right after the other, in an order drawn again."""
    units = (
        (_units([left], median), _units([right], median))
        for left, right in zip(base, head, strict=True)
    )
    apart = [right[0] - left[0] for left, right in units if left and right]
    count = len(apart)
    if not count:
        return _nothing("pair", 0, 0, tolerance)
    levels = _Levels(tolerance, 1)
    difference = fmean(apart)
    known = count > FEW
    spread = max(_long_run(apart), FLOOR) if known else PRIOR

    def interval(further: int) -> tuple[float, float]:
        freedom = max(FEW, count + further - 1)
        error = spread / math.sqrt(count + further)
        return (
            difference - student(levels.alarm, freedom) * error,
            difference + student(levels.miss, freedom) * error,
        )

    return _answer(
        "pair", levels, difference, interval, count, count, spread if known else None, ENOUGH
    )


def planned_looks(first: int, most: int) -> tuple[int, ...]:
    """After how many runs to look: at most ``LOOKS`` times, each that many times more. Set before
    anything is measured, so that the runs cannot choose when they are judged."""
    steps = LOOKS - 1
    counts = {round(first * (most / first) ** (step / steps)) for step in range(steps)}
    return tuple(sorted(count for count in counts | {most} if count >= first))


def wanted(runs: Sequence[Sequence[float]], tolerance: float = TOLERANCE) -> int:
    """How many runs a baseline should have that spreads as these do: one inner sequence a run, its
    rounds. More runs on the other side do not make up for a noisy baseline."""
    return _wanted(math.sqrt(_variance(_units(runs, midmean))), tolerance)


def _wanted(spread: float, tolerance: float) -> int:
    # Of the smallest numbers a quarter is 0.
    error = BASELINE_ERROR * tolerance or BASELINE_ERROR * TOLERANCE
    return max(ENOUGH, math.ceil(min(spread / error, math.sqrt(SEARCH)) ** 2))


def pair_precision(tolerance: float) -> float:
    """Standard error of the ratio that pairs should be measured to: it separates no change from a
    slowdown of 2.5 tolerances."""
    return max(tolerance / 4, FLOOR / 2)


class _Levels:
    """The levels of one look, and the tolerance as a difference of logs."""

    def __init__(self, tolerance: float, shares: float) -> None:
        if not (math.isfinite(tolerance) and tolerance >= 0) or shares < 1:
            raise ValueError(f"tolerance {tolerance} with {shares} looks is not possible")
        self.tolerance = tolerance
        self.limit = math.log1p(tolerance)
        self.alarm, self.miss = ALARM / shares, MISS / shares

    def verdict(self, low: float, high: float) -> str:
        if low > self.limit:
            return SLOWER
        return NOT_SLOWER if high <= self.limit else CANNOT_TELL


def _units(
    runs: Sequence[Sequence[float]], middle: Callable[[Sequence[float]], float]
) -> list[float]:
    """Log of the middle of each run that has a time."""
    usable = ([value for value in rounds if math.isfinite(value) and value > 0] for rounds in runs)
    middles = (middle(rounds) for rounds in usable if rounds)
    # Denormal numbers may have a middle of 0, and the sum of the largest is infinite.
    return [math.log(value) for value in middles if 0 < value < math.inf]


def _variance(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    # statistics.variance computes with fractions, a hundred times as long.
    middle = fmean(values)
    return sum((value - middle) ** 2 for value in values) / (len(values) - 1)


def _own_noise(rounds: Sequence[float]) -> float:
    """Standard error of a run's middle, from its rounds: runs differ by at least this."""
    logs = [math.log(value) for value in rounds if math.isfinite(value) and value > 0]
    return math.sqrt(_variance(logs) / len(logs)) if logs else 0.0


def _long_run(values: Sequence[float]) -> float:
    """Long-run standard deviation: larger than that of the values where neighbors are correlated
    (Newey and West 1987), never smaller."""
    count = len(values)
    middle = fmean(values)
    off = [value - middle for value in values]
    own = sum(value * value for value in off) / (count - 1)
    lags = round(count ** (1 / 3))
    total = own + 2 * sum(
        (1 - lag / (lags + 1))
        * sum(left * right for left, right in zip(off, off[lag:], strict=False))
        / (count - 1)
        for lag in range(1, lags + 1)
    )
    return math.sqrt(max(own, total))


def _nothing(unit: str, base: int, head: int, tolerance: float) -> Answer:
    side = "either side" if not base and not head else "the baseline" if not base else "this side"
    text = f"{side} has no usable time"
    return Answer(
        CANNOT_TELL, 1.0, 0.0, math.inf, tolerance, unit, base, head, None, None,
        _counted(unit, base, head), text, text,
    )  # fmt: skip


def _answer(
    unit: str,
    levels: _Levels,
    difference: float,
    interval: Callable[[int], tuple[float, float]],
    base: int,
    head: int,
    spread: float | None,
    better: int,
) -> Answer:
    """``interval`` is that of the difference of logs, with so many further units; ``better`` is how
    many units base should have."""
    ends = interval(0)
    verdict, remedy = levels.verdict(*ends), ""
    needed: int | None = 0
    if verdict == CANNOT_TELL:
        needed = _needed(levels, interval)
        remedy = _remedy(unit, needed, base, better)
    # Finite, and beyond any clock.
    ratio, low, high = (math.exp(max(-50.0, min(50.0, log))) for log in (difference, *ends))
    counted = _counted(unit, base, head)
    text = (
        f"{percent(ratio)}, between {percent(low)} and {percent(high)} by {counted}; "
        f"allowed {percent(1 + levels.tolerance)}"
    )
    return Answer(
        verdict, ratio, low, high, levels.tolerance, unit, base, head, spread, needed,
        counted, remedy, f"{text}: {remedy}" if remedy else text,
    )  # fmt: skip


def _needed(levels: _Levels, interval: Callable[[int], tuple[float, float]]) -> int | None:
    for further in range(1, SEARCH + 1):
        if levels.verdict(*interval(further)) != CANNOT_TELL:
            return further
    return None


def _counted(unit: str, base: int, head: int) -> str:
    if unit == "run":
        return f"{base} and {head} runs"
    return f"{base} pair{'' if base == 1 else 's'} of captures"


def _remedy(unit: str, needed: int | None, base: int, better: int) -> str:
    if needed is not None:
        return f"about {needed} more {unit}{'s' * (needed > 1)} would decide"
    if unit == "run" and base < better:
        more = f" (--max-runs {better})" * (better > MAX_RUNS)
        runs = f"{base} run{'s' * (base != 1)}"
        return f"a baseline of {runs} is too small to decide: record it with {better}{more}"
    return f"more {unit}s would not decide: the change is too close to the tolerance"


def percent(ratio: float) -> str:
    """``+3.1%`` for 1.031; two decimals below 1%."""
    change = (ratio - 1) * 100
    if not math.isfinite(change) or change > 1e6:
        return "any"
    digits = 0 if abs(change) >= 100 else 1 if abs(change) >= 1 else 2
    return f"{round(change, digits) + 0.0:+.{digits}f}%"
