"""Figures held against budgets and a baseline: one verdict each, with what it rests on.

Counts are compared exactly. Times have three answers, because a time is never the same twice
(``cgtool.analysis.gate_times``); so has whatever was not measured, or must not be compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from cgtool.analysis import gate_times
from cgtool.analysis.budgets import Budget, Budgets, Increase
from cgtool.analysis.evidence import Evidence, explain
from cgtool.analysis.gate_verdict import FAIL, PASS, UNKNOWN, WORST, Verdict, number
from cgtool.analysis.measured import Measured
from cgtool.analysis.metrics import BY_NAME, METRICS, Metric, key, known, runs_of, whole_phase
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture, Environment
from cgtool.model.failure import EXIT_FOUND, EXIT_OK, EXIT_UNKNOWN
from cgtool.model.phases import PHASES


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
    return GateReport(next((one for one in WORST if one in seen), PASS), targets)


def exit_code(report: GateReport) -> int:
    """1 when anything failed, 5 when nothing did and something cannot be told."""
    return {FAIL: EXIT_FOUND, UNKNOWN: EXIT_UNKNOWN, PASS: EXIT_OK}[report.verdict]


def judge(
    measured: Measured,
    budgets: Budgets,
    baseline: Baseline | None = None,
    *,
    compared: Capture | None = None,
    files: tuple[str, ...] = (),
    baseline_file: str | None = None,
) -> Judged:
    """Hold one target to its budgets and its baseline.

    ``compared`` is the capture that the baseline was taken from, where it is one: what is new is
    found in it. ``files`` are named in the report.
    """
    against = _Against(measured, budgets, baseline, compared)
    verdicts = [against.budget(one) for one in budgets.limits]
    notes = list(measured.notes)
    if measured.capture is not None and measured.capture.environment.simulated:
        notes.append("on the simulated device nodes are ops, and the pools are a model")
    if baseline is not None:
        verdicts += against.baseline_verdicts(baseline)
        notes += against.notes(baseline)
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


def figures(values: Baseline) -> dict[str, float]:
    """Everything that was measured; of times, the median of the runs' medians."""
    return {**values.counts, **{name: gate_times.middle(runs) for name, runs in _times(values)}}


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


class _Against(msgspec.Struct, frozen=True):
    """One target with all that it is held to."""

    measured: Measured
    budgets: Budgets
    base: Baseline | None
    compared: Capture | None

    def _evidence(self, metric: Metric, phase: str | None) -> Evidence:
        return explain(self.measured, metric, phase, self.base, self.compared)

    def budget(self, budget: Budget) -> Verdict:
        """Against one limit."""
        metric = BY_NAME[budget.metric]
        name = key(budget.metric, budget.phase)
        words = "at most" if budget.bound == "max" else "at least"
        blank = Verdict(
            name,
            metric.unit,
            UNKNOWN,
            f"{words} {number(budget.limit, metric.unit)}",
            budget.source,
            limit=budget.limit,
        )
        problem = self._unknown(metric, budget.phase)
        if problem is not None:
            return replace(blank, text=f"not measured: {problem}")
        if not metric.exact:
            found = gate_times.against_limit(blank, self.measured.values, metric, budget)
            return self._explained(found, metric, budget.phase)
        figure = self.measured.values.counts[name]
        fine = figure <= budget.limit if budget.bound == "max" else figure >= budget.limit
        off = number(abs(figure - budget.limit), metric.unit)
        side = "over" if budget.bound == "max" else "short"
        found = replace(
            blank,
            verdict=PASS if fine else FAIL,
            measured=figure,
            text="" if fine else f"{off} {side}",
        )
        return self._explained(found, metric, budget.phase)

    def _unknown(self, metric: Metric, phase: str | None) -> str | None:
        """Why there is no figure; None where there is one."""
        if metric.name in self.measured.unknown:
            return self.measured.unknown[metric.name]
        values = self.measured.values
        if metric.exact and key(metric.name, phase) not in values.counts:
            return f"the capture has no graph of {phase}"
        if not metric.exact and not runs_of(values, metric, phase):
            return f"{phase or whole_phase(values)} was not timed"
        return None

    def _explained(self, verdict: Verdict, metric: Metric, phase: str | None) -> Verdict:
        if verdict.verdict != FAIL:
            return verdict
        why = self._evidence(metric, phase)
        return replace(verdict, evidence=(*verdict.evidence, *why.lines), frame=why.frame)

    # --- against a baseline

    def _asked(self) -> Iterator[tuple[Metric, str | None, bool]]:
        """What is compared: the watched metrics, and those that a tolerance names."""
        named = [(one.metric, one.phase) for one in self.budgets.increases]
        for metric in METRICS:
            whole = (metric.name, None) in named
            if metric.watched or whole:
                yield metric, None, whole
            for name, phase in named:
                if name == metric.name and phase is not None:
                    yield metric, phase, True

    def baseline_verdicts(self, base: Baseline) -> list[Verdict]:
        here, there = self.measured.values.environment, base.environment
        if here.simulated != there.simulated:
            return [_not_alike(here, there)]
        found = []
        among = sum(not one.exact and self._has(one, at, base) for one, at, _ in self._asked())
        for metric, phase, named in self._asked():
            if not (self._has(metric, phase, base) or named):
                continue
            allowed = self.budgets.allowed(metric, phase)
            problem = self._unknown(metric, phase)
            if problem is None and not known(base, metric, phase):
                problem = "the baseline does not have it"
            if problem is not None:
                blank = Verdict(
                    key(metric.name, phase), metric.unit, UNKNOWN, "baseline", allowed.source
                )
                found.append(replace(blank, text=f"not compared: {problem}"))
            elif metric.exact:
                found.append(self._count(base, metric, phase, allowed))
            else:
                made = gate_times.against_baseline(
                    self.measured.values, base, metric, phase, allowed, among=among
                )
                found.append(self._explained(made, metric, phase))
        if not found:
            blank = Verdict("baseline", "", UNKNOWN, "baseline", "default")
            found.append(replace(blank, text="the two have no figure in common"))
        return found

    def _has(self, metric: Metric, phase: str | None, base: Baseline) -> bool:
        return self._unknown(metric, phase) is None and known(base, metric, phase)

    def _count(
        self, base: Baseline, metric: Metric, phase: str | None, allowed: Increase
    ) -> Verdict:
        name = key(metric.name, phase)
        figure, before = self.measured.values.counts[name], base.counts[name]
        room = allowed.amount if allowed.share is None else before * allowed.share
        change = figure - before
        fine = change <= (room or 0)
        unit = metric.unit
        if change == 0:
            text = "the same"
        elif change < 0:
            text = f"{number(-change, unit)} less"
        else:
            text = f"{number(change, unit)} more"
        held = f"baseline {number(before, unit)}"
        found = Verdict(
            name,
            unit,
            PASS if fine else FAIL,
            held + (f" + {gate_times.allowed_text(allowed, unit)}" if room else ""),
            allowed.source,
            text,
            measured=figure,
            baseline=before,
        )
        return self._explained(found, metric, phase)

    def notes(self, base: Baseline) -> list[str]:
        """What differs between the two and may explain a count; what could not be compared."""
        here, there = self.measured.values, base
        if here.environment.simulated != there.environment.simulated:
            return []
        found = []
        differ = [
            f"{name} {before} there, {now} here"
            for name, before, now in (
                ("GPU", there.environment.device, here.environment.device),
                ("torch", there.environment.torch, here.environment.torch),
                ("CUDA", there.environment.cuda_runtime, here.environment.cuda_runtime),
                *_options(there, here),
            )
            if before != now
        ]
        if differ:
            found.append(f"the baseline was measured otherwise: {'; '.join(differ)}")
        left = [
            metric.name
            for metric, phase, named in self._asked()
            if not named and known(base, metric, phase) and self._unknown(metric, phase) is not None
        ]
        if left:
            found.append(f"in the baseline and not measured here: {', '.join(left)}")
        return found


def _options(there: Baseline, here: Baseline) -> Iterator[tuple[str, str | None, str | None]]:
    """Options that change what is captured."""
    before = {one.name: one.value for one in there.entry.options}
    now = {one.name: one.value for one in here.entry.options}
    for name in ("backward", "pool", "allow_unused_input"):
        if name in before and name in now:
            yield name, before[name], now[name]


def _not_alike(here: Environment, there: Environment) -> Verdict:
    counted = "ops on the simulated device"
    real = there if here.simulated else here
    nodes = f"nodes on {real.device}"
    sides = (nodes, counted) if here.simulated else (counted, nodes)
    return Verdict(
        "baseline",
        "",
        UNKNOWN,
        "baseline",
        "default",
        f"not compared: the baseline counted {sides[0]}, and here are {sides[1]}",
        evidence=("one op launches any number of kernels: the two never say the same",),
    )
