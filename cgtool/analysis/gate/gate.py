"""Figures held against budgets and a baseline: one verdict each, with what it rests on.

Counts are compared exactly. Times have three answers, because a time is never the same twice
(``cgtool.analysis.gate.gate_times``); so has whatever was not measured, or must not be compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cgtool.analysis.gate import gate_times
from cgtool.analysis.gate.baseline_times import middle
from cgtool.analysis.gate.budgets import Budgets
from cgtool.analysis.gate.gate_against import Against
from cgtool.analysis.gate.gate_verdict import ERROR, FAIL, PASS, UNKNOWN, WORST, Verdict
from cgtool.analysis.gate.measured import Measured
from cgtool.analysis.gate.metrics import METRICS, key, runs_of
from cgtool.analysis.timing.regression import LOOKS
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture
from cgtool.model.failure import EXIT_FOUND, EXIT_OK, EXIT_UNKNOWN, Failure
from cgtool.model.measurements import PHASES


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
        entries = [one.entry for one in self.targets]
        return tuple(
            f"{one.entry} ({', '.join(one.files)})"
            if entries.count(one.entry) > 1 and one.files
            else one.entry
            for one in self.targets
        )


def gate(targets: tuple[Judged, ...]) -> GateReport:
    """All targets as one report."""
    seen = {one.verdict for each in targets for one in each.verdicts}
    seen |= {ERROR for each in targets if each.error is not None}
    return GateReport(next((one for one in WORST if one in seen), PASS), targets)


def exit_code(report: GateReport) -> int:
    """Of the first target that could not be measured, its own; else 1 when anything failed, 5 when
    nothing did and something cannot be told."""
    errors = [one.error.exit_code for one in report.targets if one.error is not None]
    if errors:
        return errors[0]
    return {FAIL: EXIT_FOUND, UNKNOWN: EXIT_UNKNOWN, PASS: EXIT_OK}[report.verdict]


def judge(
    measured: Measured,
    budgets: Budgets,
    baseline: Baseline | None = None,
    *,
    compared: Capture | None = None,
    files: tuple[str, ...] = (),
    baseline_file: str | None = None,
    looks: int = LOOKS,
) -> Judged:
    """Hold one target to its budgets and its baseline.

    ``compared`` is the capture that the baseline was taken from, where it is one: what is new is
    found in it. ``files`` are named in the report. ``looks`` is how often this is asked at most
    while runs are added: of what was saved nobody knows, so ``LOOKS`` is the default.
    """
    against = Against(measured, budgets, baseline, compared, looks)
    verdicts = against.verdicts()
    notes = list(measured.notes)
    if measured.capture is not None and measured.capture.environment.simulated:
        notes.append("on the simulated device nodes are ops, and the pools are a model")
    notes += against.notes()
    worse = any(one.verdict == FAIL and one.baseline is not None for one in verdicts)
    if worse and compared is not None and files:
        notes.append(f"`cgtool diff {baseline_file} {files[0]}` shows all that changed")
    order = {metric.name: at for at, metric in enumerate(METRICS)}
    verdicts.sort(
        key=lambda one: (WORST.index(one.verdict), order.get(one.metric.partition(".")[0], -1))
    )
    values = measured.values
    environment = values.environment
    return Judged(
        measured.name,
        environment.device,
        environment.simulated,
        environment.torch,
        files,
        baseline_file,
        tuple(verdicts),
        tuple(notes),
        figures(values),
        {
            name: spread
            for name, runs in _times(values)
            if (spread := gate_times.half_range(runs)) is not None
        },
    )


def not_measured(spec: str, error: Failure, files: tuple[str, ...] = ()) -> Judged:
    """A target that ended without a figure."""
    return Judged(spec, "", False, "", files, None, (), (), {}, {}, error)


def figures(values: Baseline) -> dict[str, float]:
    """Everything that was measured; of times, the median of the runs' medians."""
    return {**values.counts, **{name: middle(runs) for name, runs in _times(values)}}


def _times(values: Baseline) -> Iterator[tuple[str, tuple[tuple[float, ...], ...]]]:
    timed = {one.phase for one in values.samples}
    for metric in METRICS:
        if metric.exact:
            continue
        phases = [one for one in PHASES if one in timed] if metric.phases else []
        for phase in (None, *phases):
            runs = runs_of(values, metric, phase)
            if runs:
                yield key(metric.name, phase), runs
