"""The report of a gate: the verdicts of each target with their evidence, and the worst of them.

A verdict is "cannot tell" for a time that is undecided (``cgtool.analysis.gate.verdict``), and for
whatever was not measured or must not be compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from cgtool.analysis.gate.budgets import Budgets
from cgtool.analysis.gate.evidence import EvidenceContext, Measured, explain
from cgtool.analysis.gate.metrics import (
    BY_NAME,
    METRICS,
    Metric,
    RunSamples,
    key,
    known,
    runs_of,
    whole_phase,
)
from cgtool.analysis.gate.verdict import (
    FAIL,
    PASS,
    UNKNOWN,
    Verdict,
    against_limit,
    count_against_baseline,
    half_range,
    middle,
    time_against_baseline,
    undecided_limit,
)
from cgtool.analysis.timing.regression import LOOKS
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture
from cgtool.model.failure import EXIT_FOUND, EXIT_OK, EXIT_UNKNOWN, Failure
from cgtool.model.measurements import PHASES
from cgtool.model.options import capture_options

ERROR = "error"
"""The verdict on a target that could not be measured: it has no figure to judge."""
_WORST = (ERROR, FAIL, UNKNOWN, PASS)


class Judged(msgspec.Struct, frozen=True):
    """One target."""

    entry: str
    device: str
    simulated: bool
    torch: str
    files: tuple[str, ...]
    baseline: str | None
    """The file of the baseline."""
    verdicts: tuple[Verdict, ...]
    """The worst first, then in the order of the metrics."""
    notes: tuple[str, ...]
    figures: dict[str, float]
    """Every measured figure, judged or not; for times, the median."""
    spreads: dict[str, float]
    """For times: half the distance from the fastest run to the slowest."""
    error: Failure | None = None
    """Why it could not be measured; nothing else is known about it then."""


class GateReport(msgspec.Struct, frozen=True):
    """All targets."""

    verdict: str
    """The worst verdict of all targets."""
    targets: tuple[Judged, ...]

    def named(self) -> list[tuple[str, Judged]]:
        """Each target with a name: the entry, and the file where several are of one entry."""
        entries = [target.entry for target in self.targets]
        return [
            (f"{target.entry} ({', '.join(target.files)})", target)
            if entries.count(target.entry) > 1 and target.files
            else (target.entry, target)
            for target in self.targets
        ]


def gate_report(targets: tuple[Judged, ...]) -> GateReport:
    """All targets as one report."""
    verdicts = {verdict.verdict for target in targets for verdict in target.verdicts}
    verdicts |= {ERROR for target in targets if target.error is not None}
    return GateReport(next((verdict for verdict in _WORST if verdict in verdicts), PASS), targets)


def not_measured(spec: str, error: Failure, files: tuple[str, ...]) -> Judged:
    """A target that ended without a figure."""
    return Judged(spec, "", False, "", files, None, (), (), {}, {}, error)


def exit_code(report: GateReport) -> int:
    """The exit code: that of the first target that could not be measured; else 1 when anything
    failed, 5 when nothing failed and something cannot be decided."""
    errors = [target.error.exit_code for target in report.targets if target.error is not None]
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
    """The verdicts of one target.

    ``compared`` is the capture that the baseline was taken from, if there is one: evidence says
    what is new since then. ``files`` are named in the report. ``looks`` is how often this is called
    at most while runs are added; for saved captures nobody knows, so ``LOOKS`` is the default.
    """
    target = _Target(measured, budgets, baseline, compared, looks)
    verdicts, notes = target.verdicts(), [*measured.notes]
    values = measured.values
    environment = values.environment
    if measured.capture is not None and environment.simulated:
        notes.append("on the simulated device nodes are ops, and the pools are a model")
        notes += measured.capture.general_notes
    if baseline is not None and target.comparable:
        notes += target.notes(baseline)
    worse = any(verdict.verdict == FAIL and verdict.baseline is not None for verdict in verdicts)
    if worse and compared is not None and files:
        notes.append(f"`cgtool diff {baseline_file} {files[0]}` shows all changes")
    order = ["baseline", *(metric.name for metric in METRICS)]
    verdicts.sort(
        key=lambda verdict: (
            _WORST.index(verdict.verdict),
            order.index(verdict.metric.partition(".")[0]),
        )
    )
    times = dict(_times(values))
    spreads = {name: half_range(runs) for name, runs in times.items()}
    return Judged(
        values.entry.spec,
        environment.device,
        environment.simulated,
        environment.torch,
        files,
        baseline_file,
        tuple(verdicts),
        tuple(notes),
        {**values.counts, **{name: middle(runs) for name, runs in times.items()}},
        {name: spread for name, spread in spreads.items() if spread is not None},
    )


def _times(values: Baseline) -> Iterator[tuple[str, RunSamples]]:
    """Every time that was measured, of the whole and by phase."""
    timed = {samples.phase for samples in values.samples}
    for metric in METRICS:
        phases = [phase for phase in PHASES if phase in timed] if metric.phases else []
        for phase in () if metric.exact else (None, *phases):
            if runs := runs_of(values, metric, phase):
                yield key(metric.name, phase), runs


class _Target(msgspec.Struct, frozen=True):
    """One target, its budgets and its baseline."""

    measured: Measured
    budgets: Budgets
    base: Baseline | None
    compared: Capture | None
    looks: int

    @property
    def comparable(self) -> bool:
        """Whether both sides are from a GPU, or both from the simulated device."""
        simulated = self.measured.values.environment.simulated
        return self.base is not None and self.base.environment.simulated == simulated

    def verdicts(self) -> list[Verdict]:
        """One for each budget, then one for each figure that is compared with the baseline."""
        base, here = self.base, self.measured.values
        chosen = [*self._to_compare()] if self.comparable else []
        judged = [(BY_NAME[budget.metric], budget.phase) for budget in self.budgets.limits]
        judged += [
            (metric, phase) for metric, phase, _ in chosen if base and known(base, metric, phase)
        ]
        # Any of the times can fail the target by chance.
        among = sum(
            not metric.exact and self._unknown(metric, phase) is None for metric, phase in judged
        )
        verdicts = []
        for budget in self.budgets.limits:
            metric = BY_NAME[budget.metric]
            if problem := self._unknown(metric, budget.phase):
                verdicts.append(undecided_limit(budget, f"not measured: {problem}"))
            else:
                verdict = against_limit(here, budget, shares=self.looks * among)
                verdicts.append(self._explained(verdict, metric, budget.phase))
        if base is None:
            return verdicts
        if not self.comparable:
            ops = "ops on the simulated device"
            on_gpu = base if here.environment.simulated else here
            nodes = f"nodes on {on_gpu.environment.device}"
            theirs, ours = (nodes, ops) if here.environment.simulated else (ops, nodes)
            return [
                *verdicts,
                _not_compared(
                    f"not compared: the baseline counts {theirs}, this target {ours}",
                    "an op may launch any number of kernels, so the two are not comparable",
                ),
            ]
        compared = [
            self._compared(base, metric, phase, among)
            for metric, phase, named in chosen
            if named or (self._unknown(metric, phase) is None and known(base, metric, phase))
        ]
        return verdicts + (compared or [_not_compared("the two have no figure in common")])

    def _unknown(self, metric: Metric, phase: str | None) -> str | None:
        """Why there is no figure; None if there is one."""
        if metric.name in self.measured.unknown:
            return self.measured.unknown[metric.name]
        values = self.measured.values
        if known(values, metric, phase):
            return None
        if metric.exact:
            no_event = f"the program had no event {phase}"
            return no_event if metric.after else f"the capture has no {phase} graph"
        return f"{phase or whole_phase(values)} was not timed"

    def _explained(self, verdict: Verdict, metric: Metric, phase: str | None) -> Verdict:
        if verdict.verdict != FAIL:
            return verdict
        over_limit = verdict.baseline is None
        context = EvidenceContext(self.measured, phase, self.base, self.compared, over_limit)
        evidence = explain(metric.evidence, context)
        return replace(verdict, evidence=(*verdict.evidence, *evidence.lines), frame=evidence.frame)

    def _to_compare(self) -> Iterator[tuple[Metric, str | None, bool]]:
        """Metric, phase, and whether a tolerance names it: the watched metrics and the named."""
        named = [(increase.metric, increase.phase) for increase in self.budgets.increases]
        for metric in METRICS:
            whole = (metric.name, None) in named
            if metric.watched or whole:
                yield metric, None, whole
            for name, phase in named:
                if name == metric.name and phase is not None:
                    yield metric, phase, True

    def _compared(self, base: Baseline, metric: Metric, phase: str | None, among: int) -> Verdict:
        here, allowed = self.measured.values, self.budgets.allowed(metric, phase)
        problem = self._unknown(metric, phase)
        if problem is None and not known(base, metric, phase):
            problem = "the baseline does not have it"
        if problem is not None:
            name, text = key(metric.name, phase), f"not compared: {problem}"
            return Verdict(name, metric.unit, UNKNOWN, "baseline", allowed.source, text)
        if metric.exact:
            verdict = count_against_baseline(base, here, metric, phase, allowed)
        else:
            verdict = time_against_baseline(
                base, here, metric, phase, allowed, looks=self.looks, among=among
            )
        return self._explained(verdict, metric, phase)

    def notes(self, base: Baseline) -> list[str]:
        """Differences from the baseline that may explain a count; what could not be compared."""
        here = self.measured.values
        facts = [
            ("GPU", base.environment.device, here.environment.device),
            ("torch", base.environment.torch, here.environment.torch),
            ("CUDA", base.environment.cuda_runtime, here.environment.cuda_runtime),
        ]
        before = {option.name: option.value for option in base.entry.options}
        now = {option.name: option.value for option in here.entry.options}
        facts += [
            (option.name, before[option.name], now[option.name])
            for option in capture_options()
            if option.changes_graph and option.name in before and option.name in now
        ]
        different = [
            f"{name} {was} there, {value} here" for name, was, value in facts if was != value
        ]
        unmeasured, absent = [], []
        for metric in (metric for metric, _, named in self._to_compare() if not named):
            is_measured = self._unknown(metric, None) is None
            is_in_base = known(base, metric, None)
            if is_in_base and not is_measured:
                unmeasured.append(metric.name)
            # Every capture has these: cgtool wrote no baseline without them.
            if is_measured and not is_in_base and metric.source == "capture":
                absent.append(metric.name)
        sentences = (
            ("the baseline differs: ", "; ".join(different)),
            ("in the baseline and not measured here: ", ", ".join(unmeasured)),
            ("not in the baseline, so not compared: ", ", ".join(absent)),
        )
        return [begin + end for begin, end in sentences if end]


def _not_compared(text: str, *evidence: str) -> Verdict:
    """The verdict if the baseline cannot be compared at all."""
    return Verdict("baseline", "", UNKNOWN, "baseline", "default", text, evidence=evidence)
