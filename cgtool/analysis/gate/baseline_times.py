"""A time held against the same one of a baseline: the answer of ``bench`` and of ``gate``.

Both commands ask here, so the same runs, looked at as often and for as many times, have the same
answer from both.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from cgtool.analysis.gate.metrics import Metric, runs_of
from cgtool.analysis.timing import runs
from cgtool.analysis.timing.regression import CANNOT_TELL, Answer, judge_runs
from cgtool.analysis.timing.runs import Reasons
from cgtool.model.baseline import Baseline

Runs = Sequence[Sequence[float]]


class BaselineComparison(msgspec.Struct, frozen=True):
    """One time on both sides, in the metric's unit."""

    base: float
    here: float
    answer: Answer | None
    """How much worse it is here; of what is better when it is larger, the ratio is that of the
    baseline over this. None where the two must not be compared."""
    reasons: Reasons
    """Why they must not."""

    @property
    def compared(self) -> bool:
        """Whether these runs, or further ones, can be held against the baseline at all."""
        return self.answer is not None or self.reasons.pass_over

    @property
    def open(self) -> bool:
        """Whether more runs may tell what these do not."""
        if self.answer is None:
            return self.reasons.pass_over
        return self.answer.verdict == CANNOT_TELL


def hold(
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
    reasons = runs.reasons(
        base.environment, base.clock, here.environment, here.clock, host=metric.host
    )
    answer = None
    if not reasons.all:
        worse = _inverse if metric.larger_is_better else tuple
        answer = judge_runs(worse(before), worse(now), tolerance, looks=looks, among=among)
    return BaselineComparison(middle(before), middle(now), answer, reasons)


def _inverse(runs: Runs) -> Runs:
    """Larger where it is worse. Not the two sides exchanged: the answer counts the runs of each,
    and says which side needs more."""
    return [[1 / time for time in one] for one in runs]


def middle(runs: Runs) -> float:
    """Median over the runs of each run's median."""
    return median(median(one) for one in runs)
