"""What ``cgtool bench`` answers when it is given something to hold its times against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from cgtool.analysis.gate import baseline_times
from cgtool.analysis.gate.baseline_times import BaselineComparison
from cgtool.analysis.gate.metrics import BY_NAME, runs_of
from cgtool.analysis.timing import comparable
from cgtool.analysis.timing.regression import CANNOT_TELL, SLOWER, Answer, judge_pairs
from cgtool.analysis.timing.runs import by_capture, by_side
from cgtool.analysis.timing.stats import midmean
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture
from cgtool.model.failure import EXIT_FOUND, EXIT_OK, EXIT_UNKNOWN

REPLAY = BY_NAME["replay-us"]
NS = 1e3
"""Of a microsecond, the unit of the metric."""


class PhaseVerdict(msgspec.Struct, frozen=True):
    """One phase. Times are nanoseconds a replay."""

    phase: str
    base_ns: float
    """Of the baseline, or of the other entry."""
    head_ns: float
    answer: Answer | None
    """None where the two must not be compared."""
    reasons: tuple[str, ...] = ()
    """Why they must not."""

    @property
    def verdict(self) -> str:
        return CANNOT_TELL if self.answer is None else self.answer.verdict


def against_baseline(
    base: Baseline, now: Baseline, tolerance: float, looks: int
) -> dict[str, BaselineComparison]:
    """Replays of each phase that both have. The level is shared between looks and phases."""
    phases = [
        one
        for one in dict.fromkeys(one.phase for one in now.samples)
        if runs_of(base, REPLAY, one) and runs_of(now, REPLAY, one)
    ]
    return {
        one: baseline_times.hold(base, now, REPLAY, one, tolerance, looks=looks, among=len(phases))
        for one in phases
    }


def verdicts(held: Mapping[str, BaselineComparison]) -> tuple[PhaseVerdict, ...]:
    """What was held against a baseline, as the report has it."""
    return tuple(
        PhaseVerdict(phase, NS * one.base, NS * one.here, one.answer, one.reasons.all)
        for phase, one in held.items()
    )


def against_entry(capture: Capture, tolerance: float) -> tuple[PhaseVerdict, ...]:
    """The verdict on the pairs of a capture that was timed against another entry."""
    bench = capture.bench
    if bench is None:
        return ()
    reasons = tuple(comparable.disturbed(bench.clock, "meanwhile"))
    found = []
    for phase, sides in by_side(bench.samples).items():
        if "against" in sides and "replay" in sides:
            base, head = sides["against"], sides["replay"]
            answer = None
            if not reasons:
                answer = judge_pairs(by_capture(base), by_capture(head), tolerance, looks=1)
            found.append(
                PhaseVerdict(
                    phase, midmean(base.device_ns), midmean(head.device_ns), answer, reasons
                )
            )
    return tuple(found)


def exit_code(verdicts: Iterable[PhaseVerdict]) -> int:
    """1 when a phase is slower, 5 when none is and one cannot be told."""
    seen = {one.verdict for one in verdicts}
    if SLOWER in seen:
        return EXIT_FOUND
    return EXIT_UNKNOWN if CANNOT_TELL in seen else EXIT_OK
