"""Times compared with a limit or with a baseline: three answers.

``bench`` and ``gate`` both compare with a baseline here (``compare_with_baseline``), so the same
runs, looked at as often and for as many times, have the same answer from both. With a limit, the
runs alone are looked at: an interval for their middle, on the log scale, as wide as the spread of
the runs makes it (Student), and no narrower than a prior spread allows while there are too few runs
to know the spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

import msgspec
from msgspec.structs import replace

from cgtool.analysis.gate.budgets import Budget, Increase
from cgtool.analysis.gate.metrics import Metric, Runs, key, runs_of
from cgtool.analysis.gate.report import FAIL, PASS, UNKNOWN, Verdict, number
from cgtool.analysis.timing import runs as comparable
from cgtool.analysis.timing import stats
from cgtool.analysis.timing.regression import (
    ALARM,
    CANNOT_TELL,
    FEW,
    FLOOR,
    PRIOR,
    SEARCH,
    SLOWER,
    Answer,
    judge_runs,
    percent,
)
from cgtool.analysis.timing.runs import Reasons, disturbances
from cgtool.model.baseline import Baseline

_HOST_PRIOR = 0.1
"""``PRIOR`` for host-dependent times, which differ more from process to process."""
_MANY = 1000
"""Degrees of freedom that are as good as any number of them."""


def middle(runs: Runs) -> float:
    """Median over the runs of each run's median."""
    return median(median(run) for run in runs)


def half_range(runs: Runs) -> float | None:
    """Half the distance of the slowest run from the fastest; of one run, half its middle half."""
    if len(runs) > 1:
        middles = [median(run) for run in runs]
        return (max(middles) - min(middles)) / 2
    spread = stats.spread(runs[0]) if runs else None
    return None if spread is None else spread * median(runs[0])


def allowed_text(allowed: Increase, unit: str) -> str:
    """``2%``, ``3 MiB``."""
    if allowed.share is not None:
        return f"{allowed.share * 100:.3g}%"
    return number(allowed.amount or 0, unit)


# --- a limit


def against_limit(
    blank: Verdict, values: Baseline, metric: Metric, budget: Budget, *, shares: int
) -> Verdict:
    """``blank`` with the answer: the interval lies on one side of the limit, or it does not.
    ``shares`` is what the level is divided by: looks, times the times that are judged."""
    runs = runs_of(values, metric, budget.phase)
    prior = _HOST_PRIOR if metric.host else PRIOR
    low, high = interval(runs, prior, shares=shares)
    verdict = replace(blank, measured=middle(runs))
    reasons = disturbances(values.clock, "meanwhile") if metric.source == "bench" else []
    above, below = low > budget.limit, high <= budget.limit
    if budget.bound == "min":
        above, below = low >= budget.limit, high < budget.limit
    fine, bad = (below, above) if budget.bound == "max" else (above, below)
    if reasons and not (fine and budget.bound == "max"):
        # What is fast enough on a GPU that was slowed down is fast enough.
        return replace(
            verdict, text=reasons[0], evidence=tuple(reasons[1:]), more_runs=1, open=True
        )
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    spread = f"{count}: {number(low)} to {number(high, metric.unit)}"
    verdict = replace(verdict, low=low, high=high)
    if fine or bad:
        return replace(verdict, verdict=PASS if fine else FAIL, text=spread)
    more = _needed(runs, budget.limit, prior, shares)
    return replace(verdict, text=f"too close to the limit; {spread}", more_runs=more, open=True)


def interval(runs: Runs, prior: float = PRIOR, *, shares: int) -> tuple[float, float]:
    """Where the middle of such runs lies, but for 1 in 200 on each side, over all ``shares``."""
    logs = [math.log(median(run)) for run in runs]
    return _around(logs, _spread(logs, runs, prior), shares)


def _spread(logs: Sequence[float], runs: Runs, prior: float) -> float:
    if len(logs) > FEW:
        return max(stdev(logs), FLOOR)
    own = max((stats.spread(run) or 0.0 for run in runs), default=0.0)
    return max(own, prior, stdev(logs) if len(logs) > 1 else 0.0)


def _around(logs: Sequence[float], spread: float, shares: int) -> tuple[float, float]:
    freedom = len(logs) - 1 if len(logs) > FEW else _MANY
    reach = stats.student(ALARM / shares, freedom) * spread / math.sqrt(len(logs))
    center = fmean(logs)
    return math.exp(center - reach), math.exp(center + reach)


def _needed(runs: Runs, limit: float, prior: float, shares: int) -> int | None:
    """How many more such runs would bring the interval to one side of the limit."""
    logs = [math.log(median(run)) for run in runs]
    spread, center = _spread(logs, runs, prior), fmean(logs)
    for more in range(1, SEARCH):
        low, high = _around([center] * (len(logs) + more), spread, shares)
        if not low <= limit <= high:
            return more
    return None


# --- a baseline


class BaselineComparison(msgspec.Struct, frozen=True):
    """One time on both sides, in the metric's unit."""

    base: float
    here: float
    answer: Answer | None
    """How much worse it is here; of a metric that is better when it is larger, the ratio is that of
    the baseline over this. None where the two must not be compared."""
    reasons: Reasons
    """Why they must not."""

    @property
    def compared(self) -> bool:
        """Whether these runs, or further ones, can be compared with the baseline at all."""
        return self.answer is not None or self.reasons.pass_over

    @property
    def open(self) -> bool:
        """Whether more runs may decide what these do not."""
        if self.answer is None:
            return self.reasons.pass_over
        return self.answer.verdict == CANNOT_TELL


def compare_with_baseline(
    base: Baseline,
    here: Baseline,
    metric: Metric,
    phase: str | None,
    tolerance: float,
    *,
    looks: int,
    among: int,
) -> BaselineComparison:
    """``tolerance`` is relative (0.01). The level is shared between the ``looks`` that are taken at
    most, with more runs each time, and ``among`` all the times that one verdict rests on.

    Raises ValueError where a side has no such time.
    """
    before, now = runs_of(base, metric, phase), runs_of(here, metric, phase)
    if not (before and now):
        raise ValueError(f"one side has no {metric.name} of {phase or 'the whole'}")
    reasons = comparable.reasons(
        base.environment, base.clock, here.environment, here.clock, host=metric.host
    )
    answer = None
    if not reasons.all:
        # Larger where it is worse. The two sides are not exchanged: the answer counts the runs of
        # each, and says which side needs more.
        worse = _inverse if metric.larger_is_better else tuple
        answer = judge_runs(worse(before), worse(now), tolerance, looks=looks, among=among)
    return BaselineComparison(middle(before), middle(now), answer, reasons)


def _inverse(runs: Runs) -> Runs:
    return tuple(tuple(1 / time for time in run) for run in runs)


def against_baseline(
    values: Baseline,
    base: Baseline,
    metric: Metric,
    phase: str | None,
    allowed: Increase,
    *,
    looks: int,
    among: int,
) -> Verdict:
    """Slower than the baseline by more than the tolerance, or not, or not decided yet."""
    comparison = compare_with_baseline(
        base, values, metric, phase, allowed.share or 0.0, looks=looks, among=among
    )
    unit, answer = metric.unit, comparison.answer
    verdict = Verdict(
        key(metric.name, phase),
        unit,
        UNKNOWN,
        f"baseline {number(comparison.base, unit)} "
        f"{'-' if metric.larger_is_better else '+'} {allowed_text(allowed, unit)}",
        allowed.source,
        measured=comparison.here,
        baseline=comparison.base,
        compared=comparison.compared,
        open=comparison.open,
    )
    if answer is None:
        first, *rest = comparison.reasons.all
        return replace(
            verdict,
            text=f"not compared: {first}",
            evidence=tuple(rest),
            more_runs=1 if comparison.open else None,
        )
    ratios = (answer.ratio, answer.low, answer.high)
    if metric.larger_is_better:
        ratios = (1 / answer.ratio, 1 / answer.high, 1 / answer.low)
    change, low, high = map(percent, ratios)
    text = f"{change}, {low} to {high}"
    return replace(
        verdict,
        verdict={SLOWER: FAIL, CANNOT_TELL: UNKNOWN}.get(answer.verdict, PASS),
        text=f"{text} by {answer.counted}: {answer.remedy}" if answer.remedy else text,
        ratio=ratios[0],
        ratio_low=ratios[1],
        ratio_high=ratios[2],
        more_runs=answer.needed if comparison.open else None,
    )
