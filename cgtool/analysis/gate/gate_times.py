"""Times held to a limit or to a baseline: three answers.

Against a baseline ``cgtool.analysis.gate.baseline_times`` answers. Against a limit the runs alone
are looked at: an interval for their middle, on the log scale, as wide as the runs' own spread makes
it (Student), and no narrower than a prior spread allows while there are too few to know the
spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from msgspec.structs import replace

from cgtool.analysis.gate import baseline_times
from cgtool.analysis.gate.baseline_times import Runs, middle
from cgtool.analysis.gate.budgets import Budget, Increase
from cgtool.analysis.gate.gate_verdict import FAIL, PASS, UNKNOWN, Verdict, number
from cgtool.analysis.gate.metrics import Metric, key, runs_of
from cgtool.analysis.timing import stats
from cgtool.analysis.timing.regression import (
    ALARM,
    CANNOT_TELL,
    FEW,
    FLOOR,
    PRIOR,
    SEARCH,
    SLOWER,
    percent,
)
from cgtool.analysis.timing.runs import disturbances
from cgtool.model.baseline import Baseline

_HOST_PRIOR = 0.1
"""``PRIOR`` for what the host has a part in: it differs more from process to process."""
_MANY = 1000
"""Degrees of freedom that are as good as any number of them."""


def half_range(runs: Runs) -> float | None:
    """Half the distance of the slowest run from the fastest; of one run, half its middle half."""
    if len(runs) > 1:
        middles = [median(one) for one in runs]
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
    found = replace(blank, measured=middle(runs))
    reasons = disturbances(values.clock, "meanwhile") if metric.source == "bench" else []
    above, below = low > budget.limit, high <= budget.limit
    if budget.bound == "min":
        above, below = low >= budget.limit, high < budget.limit
    fine, bad = (below, above) if budget.bound == "max" else (above, below)
    if reasons and not (fine and budget.bound == "max"):
        # What is fast enough on a GPU that was slowed down is fast enough.
        return replace(found, text=reasons[0], evidence=tuple(reasons[1:]), more_runs=1, open=True)
    spread = f"{_count(runs)}: {number(low)} to {number(high, metric.unit)}"
    found = replace(found, low=low, high=high)
    if fine or bad:
        return replace(found, verdict=PASS if fine else FAIL, text=spread)
    more = _needed(runs, budget.limit, prior, shares)
    return replace(found, text=f"too near to tell; {spread}", more_runs=more, open=True)


def interval(runs: Runs, prior: float = PRIOR, *, shares: int) -> tuple[float, float]:
    """Where the middle of such runs lies, but for 1 in 200 on each side, over all ``shares``."""
    logs = [math.log(median(one)) for one in runs]
    return _around(logs, _spread(logs, runs, prior), shares)


def _spread(logs: Sequence[float], runs: Runs, prior: float) -> float:
    if len(logs) > FEW:
        return max(stdev(logs), FLOOR)
    own = max((stats.spread(one) or 0.0 for one in runs), default=0.0)
    return max(own, prior, stdev(logs) if len(logs) > 1 else 0.0)


def _around(logs: Sequence[float], spread: float, shares: int) -> tuple[float, float]:
    freedom = len(logs) - 1 if len(logs) > FEW else _MANY
    reach = stats.student(ALARM / shares, freedom) * spread / math.sqrt(len(logs))
    center = fmean(logs)
    return math.exp(center - reach), math.exp(center + reach)


def _needed(runs: Runs, limit: float, prior: float, shares: int) -> int | None:
    """How many more such runs would bring the interval to one side of the limit."""
    logs = [math.log(median(one)) for one in runs]
    spread, center = _spread(logs, runs, prior), fmean(logs)
    for more in range(1, SEARCH):
        low, high = _around([center] * (len(logs) + more), spread, shares)
        if not low <= limit <= high:
            return more
    return None


def _count(runs: Runs) -> str:
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'}"


# --- a baseline


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
    """Slower than the baseline by more than the tolerance, or not, or nobody can tell yet."""
    held = baseline_times.hold(
        base, values, metric, phase, allowed.share or 0.0, looks=looks, among=among
    )
    unit, answer = metric.unit, held.answer
    found = Verdict(
        key(metric.name, phase),
        unit,
        UNKNOWN,
        f"baseline {number(held.base, unit)} "
        f"{'-' if metric.larger_is_better else '+'} {allowed_text(allowed, unit)}",
        allowed.source,
        measured=held.here,
        baseline=held.base,
        compared=held.compared,
        open=held.open,
    )
    if answer is None:
        first, *rest = held.reasons.all
        return replace(
            found,
            text=f"not compared: {first}",
            evidence=tuple(rest),
            more_runs=1 if held.open else None,
        )
    ratios = (answer.ratio, answer.low, answer.high)
    if metric.larger_is_better:
        ratios = (1 / answer.ratio, 1 / answer.high, 1 / answer.low)
    verdict = {SLOWER: FAIL, CANNOT_TELL: UNKNOWN}.get(answer.verdict, PASS)
    change, low, high = map(percent, ratios)
    text = f"{change}, {low} to {high}"
    return replace(
        found,
        verdict=verdict,
        text=f"{text} by {answer.counted}: {answer.remedy}" if answer.remedy else text,
        ratio=ratios[0],
        ratio_low=ratios[1],
        ratio_high=ratios[2],
        more_runs=answer.needed if held.open else None,
    )
