"""One figure compared with a limit or with a baseline.

Counts are compared exactly. Times have three answers, because a time is never the same twice.
``bench`` and ``gate`` both compare them with a baseline here (``compare_with_baseline``), so the
same runs, looked at as often and for as many times, have the same answer from both. With a limit,
the runs alone are looked at: an interval for their middle, on the log scale, as wide as the spread
of the runs makes it (Student), and no narrower than a prior spread allows while there are too few
runs to know the spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

import msgspec
from msgspec.structs import replace

from cgtool.analysis.gate.budgets import Budget, Increase
from cgtool.analysis.gate.metrics import BY_NAME, Metric, RunSamples, key, runs_of
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
from cgtool.analysis.timing.runs import Reasons, disturbances, why_incomparable
from cgtool.analysis.timing.stats import spread, student
from cgtool.analysis.units import count_text
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Frame

PASS, FAIL, UNKNOWN = "pass", "fail", "cannot-tell"
_HOST_PRIOR = 0.1
"""``PRIOR`` for host-dependent times, which differ more from process to process."""
_FROM_IDLE = (
    "an earlier cgtool measured one side on a GPU that was idle before each round: record it again"
)
_MANY = 1000
"""Degrees of freedom that are practically infinite."""


class Verdict(msgspec.Struct, frozen=True):
    """One figure and its limit. Figures are in the metric's unit."""

    metric: str
    """``nodes``, ``nodes.forward``; ``baseline`` when the two cannot be compared at all."""
    unit: str
    verdict: str
    """``pass``, ``fail`` or ``cannot-tell``."""
    requirement: str
    """``at most 400``, ``baseline 22``, ``baseline 33.0 us + 3%``."""
    source: str
    """Where the budget or the tolerance comes from, or ``default``."""
    text: str = ""
    """The reason for the verdict."""
    measured: float | None = None
    """A count, or the median of a time."""
    low: float | None = None
    high: float | None = None
    """The interval of a time that has a budget."""
    limit: float | None = None
    baseline: float | None = None
    ratio: float | None = None
    """For a time: measured divided by baseline."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    more_runs: int | None = None
    """About how many more runs an answer would take; 1 where these were disturbed."""
    compared: bool = False
    """Whether this is a time that these runs, or further ones, can compare with a baseline."""
    open: bool = False
    """Whether more runs may decide it."""
    evidence: tuple[str, ...] = ()
    """The causes, one line each."""
    frame: Frame | None = None
    """The user's line that causes most of it."""


def number(value: float, unit: str = "") -> str:
    """``1,234``, ``62.5 MiB``, ``33.0 us``, ``2.93x``: at least four digits if available."""
    if value == int(value) and abs(value) < 1e15:
        text = f"{int(value):,}"
    else:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text + ("x" if unit == "x" else f" {unit}" if unit else "")


def middle(runs: RunSamples) -> float:
    """Median over the runs of each run's median."""
    return median(map(median, runs))


def half_range(runs: RunSamples) -> float | None:
    """Half the distance from the fastest run to the slowest; for one run, half its middle half."""
    middles = [median(run) for run in runs]
    if len(runs) > 1:
        return (max(middles) - min(middles)) / 2
    rounds = spread(runs[0]) if runs else None
    return None if rounds is None else rounds * middles[0]


# --- a limit


def against_limit(values: Baseline, budget: Budget, *, shares: int) -> Verdict:
    """A figure that was measured, and its limit. ``shares`` is what the level of a time is divided
    by: looks, times the times that are judged."""
    metric = BY_NAME[budget.metric]
    if not metric.exact:
        return _judge_time_limit(values, metric, budget, shares)
    figure = values.counts[key(metric.name, budget.phase)]
    over = figure - budget.limit if budget.bound == "max" else budget.limit - figure
    side = "over" if budget.bound == "max" else "short"
    return replace(
        undecided_limit(budget),
        verdict=FAIL if over > 0 else PASS,
        text=f"{number(over, metric.unit)} {side}" if over > 0 else "",
        measured=figure,
    )


def undecided_limit(budget: Budget, text: str = "") -> Verdict:
    """The verdict for a figure that is unknown, or not yet known."""
    unit = BY_NAME[budget.metric].unit
    words = "at most" if budget.bound == "max" else "at least"
    return Verdict(
        key(budget.metric, budget.phase),
        unit,
        UNKNOWN,
        f"{words} {number(budget.limit, unit)}",
        budget.source,
        text,
        limit=budget.limit,
    )


def _judge_time_limit(values: Baseline, metric: Metric, budget: Budget, shares: int) -> Verdict:
    """Compare an interval with a limit; undecided if the limit is inside it."""
    runs = runs_of(values, metric, budget.phase)
    logs = [math.log(median(run)) for run in runs]
    center, width = fmean(logs), _spread(logs, runs, _HOST_PRIOR if metric.host else PRIOR)
    low, high = _interval(center, len(runs), width, shares)
    verdict = replace(undecided_limit(budget), measured=middle(runs))
    if budget.bound == "max":
        fine, bad = high <= budget.limit, low > budget.limit
    else:
        fine, bad = low >= budget.limit, high < budget.limit
    reasons = disturbances(values.clock, "meanwhile") if metric.source == "bench" else []
    if reasons and not (fine and budget.bound == "max"):
        # Fast enough on a slowed-down GPU is fast enough.
        return replace(
            verdict, text=reasons[0], evidence=tuple(reasons[1:]), more_runs=1, open=True
        )
    text = f"{count_text(len(runs), 'run')}: {number(low)} to {number(high, metric.unit)}"
    verdict = replace(verdict, text=text, low=low, high=high)
    if fine or bad:
        return replace(verdict, verdict=PASS if fine else FAIL)
    needed = None
    for more in range(1, SEARCH):
        least, most = _interval(center, len(runs) + more, width, shares)
        if not least <= budget.limit <= most:
            needed = more
            break
    return replace(verdict, text=f"too close to the limit; {text}", more_runs=needed, open=True)


def _spread(logs: Sequence[float], runs: RunSamples, prior: float) -> float:
    if len(logs) > FEW:
        return max(stdev(logs), FLOOR)
    own = max(spread(run) or 0.0 for run in runs)
    return max(own, prior, stdev(logs) if len(logs) > 1 else 0.0)


def _interval(center: float, count: int, width: float, shares: int) -> tuple[float, float]:
    """Where the middle of so many runs lies, but for 1 in 200 on each side, over all ``shares``."""
    freedom = count - 1 if count > FEW else _MANY
    reach = student(ALARM / shares, freedom) * width / math.sqrt(count)
    return math.exp(center - reach), math.exp(center + reach)


# --- a baseline


class BaselineComparison(msgspec.Struct, frozen=True):
    """One time of both sides, in the metric's unit."""

    base: float
    here: float
    answer: Answer | None
    """How much worse it is here; of a metric that is better when it is larger, the ratio is that of
    the baseline over this. None if the two must not be compared."""
    reasons: Reasons
    """Why they must not be compared."""

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
    """Both sides have the time. ``tolerance`` is relative (0.01). The level is shared between the
    ``looks`` that are taken at most, with more runs each time, and ``among`` all the times that one
    verdict rests on."""
    before, now = runs_of(base, metric, phase), runs_of(here, metric, phase)
    reasons = why_incomparable(
        base.environment, base.clock, here.environment, here.clock, host=metric.host
    )
    if metric.source == "bench" and _from_idle(base) != _from_idle(here):
        reasons = reasons._replace(permanent=(*reasons.permanent, _FROM_IDLE))
    answer = None
    if not reasons.all:
        # Larger where it is worse. The two sides are not exchanged: the answer counts the runs of
        # each, and says which side needs more.
        worse = _inverse if metric.larger_is_better else tuple
        answer = judge_runs(worse(before), worse(now), tolerance, looks=looks, among=among)
    return BaselineComparison(middle(before), middle(now), answer, reasons)


def _from_idle(side: Baseline) -> bool:
    """Whether its rounds begin on an idle GPU, which adds up to 6% to a replay (H200)."""
    return any(not samples.lead_in for samples in side.samples)


def _inverse(runs: RunSamples) -> RunSamples:
    return tuple(tuple(1 / time for time in run) for run in runs)


def time_against_baseline(
    base: Baseline,
    here: Baseline,
    metric: Metric,
    phase: str | None,
    allowed: Increase,
    *,
    looks: int,
    among: int,
) -> Verdict:
    """Whether a time is slower than the baseline by more than the tolerance; or undecided."""
    comparison = compare_with_baseline(
        base, here, metric, phase, allowed.share or 0.0, looks=looks, among=among
    )
    answer = comparison.answer
    sign = "-" if metric.larger_is_better else "+"
    verdict = Verdict(
        key(metric.name, phase),
        metric.unit,
        UNKNOWN,
        f"baseline {number(comparison.base, metric.unit)} {sign} {_allowed_text(allowed, metric)}",
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


def count_against_baseline(
    base: Baseline, here: Baseline, metric: Metric, phase: str | None, allowed: Increase
) -> Verdict:
    """A count may grow by its tolerance."""
    name, unit = key(metric.name, phase), metric.unit
    figure, before = here.counts[name], base.counts[name]
    room = (allowed.amount if allowed.share is None else before * allowed.share) or 0
    change = figure - before
    # 29% of 100 is 28.999999999999996 in floating point.
    fine = change <= room or math.isclose(change, room, rel_tol=1e-9)
    text = f"{number(abs(change), unit)} {'less' if change < 0 else 'more'}"
    more = f" + {_allowed_text(allowed, metric)}" if room else ""
    return Verdict(
        name,
        unit,
        PASS if fine else FAIL,
        f"baseline {number(before, unit)}{more}",
        allowed.source,
        text if change else "the same",
        measured=figure,
        baseline=before,
    )


def _allowed_text(allowed: Increase, metric: Metric) -> str:
    """``2%``, ``3 MiB``."""
    if allowed.share is not None:
        return f"{allowed.share * 100:.3g}%"
    return number(allowed.amount or 0, metric.unit)
