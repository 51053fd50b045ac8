"""What a gate reports: a verdict on each figure, and the worst of them."""

from __future__ import annotations

import msgspec

from cgtool.model.capture import Frame
from cgtool.model.failure import EXIT_FOUND, EXIT_OK, EXIT_UNKNOWN, Failure

PASS, FAIL, UNKNOWN = "pass", "fail", "cannot-tell"
ERROR = "error"
"""Of a target that could not be measured at all: there is no figure to judge."""
WORST = (ERROR, FAIL, UNKNOWN, PASS)


class Verdict(msgspec.Struct, frozen=True):
    """One figure and its limit. Figures are in the metric's unit."""

    metric: str
    """``nodes``, ``nodes.forward``; ``baseline`` when the two cannot be compared at all."""
    unit: str
    verdict: str
    """``pass``, ``fail`` or ``cannot-tell``."""
    held_to: str
    """``at most 400``, ``baseline 22``, ``baseline 33.0 us + 3%``."""
    source: str
    """Where the budget or the tolerance was written; ``default``."""
    text: str = ""
    """Why that is the verdict."""
    measured: float | None = None
    """A count, or the median of a time."""
    low: float | None = None
    high: float | None = None
    """The interval of a time that has a budget."""
    limit: float | None = None
    baseline: float | None = None
    ratio: float | None = None
    """Of a time: measured over baseline."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    more_runs: int | None = None
    """About how many more runs an answer would take; 1 where these were disturbed."""
    compared: bool = False
    """Whether this is a time that these runs, or further ones, can compare with a baseline."""
    open: bool = False
    """Whether more runs may decide it."""
    evidence: tuple[str, ...] = ()
    """What caused it, a line each."""
    frame: Frame | None = None
    """The user's line that causes most of it."""


class Judged(msgspec.Struct, frozen=True):
    """One target."""

    entry: str
    device: str
    simulated: bool
    torch: str
    files: tuple[str, ...]
    baseline: str | None
    """The file that it was compared with."""
    verdicts: tuple[Verdict, ...]
    """The worst first, then in the order of the metrics."""
    notes: tuple[str, ...]
    figures: dict[str, float]
    """Every figure that was measured, judged or not; of times, the median."""
    spreads: dict[str, float]
    """Of times: half the distance from the fastest run to the slowest."""
    error: Failure | None = None
    """Why it could not be measured; nothing else is known of it then."""


class GateReport(msgspec.Struct, frozen=True):
    """All targets."""

    verdict: str
    """The worst of all."""
    targets: tuple[Judged, ...]

    def names(self) -> tuple[str, ...]:
        """A name for each target: its entry, and its file where several are of one entry."""
        entries = [target.entry for target in self.targets]
        return tuple(
            f"{target.entry} ({', '.join(target.files)})"
            if entries.count(target.entry) > 1 and target.files
            else target.entry
            for target in self.targets
        )


def gate_report(targets: tuple[Judged, ...]) -> GateReport:
    """All targets as one report."""
    verdicts = {verdict.verdict for target in targets for verdict in target.verdicts}
    verdicts |= {ERROR for target in targets if target.error is not None}
    return GateReport(next((verdict for verdict in WORST if verdict in verdicts), PASS), targets)


def not_measured(spec: str, error: Failure, files: tuple[str, ...] = ()) -> Judged:
    """A target that ended without a figure."""
    return Judged(spec, "", False, "", files, None, (), (), {}, {}, error)


def exit_code(report: GateReport) -> int:
    """Of the first target that could not be measured, its own; else 1 when anything failed, 5 when
    nothing failed and something cannot be decided."""
    errors = [target.error.exit_code for target in report.targets if target.error is not None]
    if errors:
        return errors[0]
    return {FAIL: EXIT_FOUND, UNKNOWN: EXIT_UNKNOWN, PASS: EXIT_OK}[report.verdict]


def number(value: float, unit: str = "") -> str:
    """``1,234``, ``62.5 MiB``, ``33.0 us``, ``2.93x``: four digits at least where there are."""
    if value == int(value) and abs(value) < 1e15:
        text = f"{int(value):,}"
    else:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text + ("x" if unit == "x" else f" {unit}" if unit else "")
