"""Figures compared with budgets and a baseline: one verdict each, with its evidence.

Counts are compared exactly. Times have three answers, because a time is never the same twice
(``cgtool.analysis.gate.times``); so has whatever was not measured, or must not be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from cgtool.analysis.gate import times
from cgtool.analysis.gate.budgets import Budget, Budgets, Increase
from cgtool.analysis.gate.evidence import Context, Measured, explain
from cgtool.analysis.gate.metrics import (
    BY_NAME,
    METRICS,
    Metric,
    Runs,
    key,
    known,
    runs_of,
    whole_phase,
)
from cgtool.analysis.gate.report import FAIL, PASS, UNKNOWN, WORST, Judged, Verdict, number
from cgtool.analysis.timing.regression import LOOKS
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture, Environment
from cgtool.model.measurements import PHASES
from cgtool.model.options import capture_options


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

    ``compared`` is the capture that the baseline was taken from, where there is one: evidence says
    what is new since then. ``files`` are named in the report. ``looks`` is how often this is called
    at most while runs are added; for saved captures nobody knows, so ``LOOKS`` is the default.
    """
    target = _Target(measured, budgets, baseline, compared, looks)
    verdicts = target.verdicts()
    notes = list(measured.notes)
    if measured.capture is not None and measured.capture.environment.simulated:
        notes.append("on the simulated device nodes are ops, and the pools are a model")
    notes += target.notes()
    worse = any(verdict.verdict == FAIL and verdict.baseline is not None for verdict in verdicts)
    if worse and compared is not None and files:
        notes.append(f"`cgtool diff {baseline_file} {files[0]}` shows all changes")
    order = {metric.name: at for at, metric in enumerate(METRICS)}
    verdicts.sort(
        key=lambda verdict: (
            WORST.index(verdict.verdict),
            order.get(verdict.metric.partition(".")[0], -1),
        )
    )
    values = measured.values
    environment = values.environment
    return Judged(
        values.entry.spec,
        environment.device,
        environment.simulated,
        environment.torch,
        files,
        baseline_file,
        tuple(verdicts),
        tuple(notes),
        {**values.counts, **{name: times.middle(runs) for name, runs in _times(values)}},
        {
            name: spread
            for name, runs in _times(values)
            if (spread := times.half_range(runs)) is not None
        },
    )


def _times(values: Baseline) -> Iterator[tuple[str, Runs]]:
    """Every time that was measured, of the whole and by phase."""
    timed = {samples.phase for samples in values.samples}
    for metric in METRICS:
        if metric.exact:
            continue
        phases = [phase for phase in PHASES if phase in timed] if metric.phases else []
        for phase in (None, *phases):
            runs = runs_of(values, metric, phase)
            if runs:
                yield key(metric.name, phase), runs


class _Target(msgspec.Struct, frozen=True):
    """One target, its budgets and its baseline."""

    measured: Measured
    budgets: Budgets
    base: Baseline | None
    compared: Capture | None
    looks: int

    def verdicts(self) -> list[Verdict]:
        """One for each budget, then one for each figure that is compared with the baseline."""
        verdicts = [self._limit(budget) for budget in self.budgets.limits]
        return verdicts if self.base is None else verdicts + self._compared(self.base)

    def _timed(self) -> int:
        """How many times are judged: any of them can fail the target by chance."""
        limits = [(BY_NAME[budget.metric], budget.phase) for budget in self.budgets.limits]
        number_of_times = sum(
            not metric.exact and self._unknown(metric, phase) is None for metric, phase in limits
        )
        if self.base is None or not self._same_kind(self.base):
            return number_of_times
        return number_of_times + sum(
            not metric.exact and self._is_on_both(metric, phase, self.base)
            for metric, phase, _ in self._to_compare()
        )

    def _same_kind(self, base: Baseline) -> bool:
        return self.measured.values.environment.simulated == base.environment.simulated

    def _limit(self, budget: Budget) -> Verdict:
        """Compared with one limit."""
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
            verdict = times.against_limit(
                blank, self.measured.values, metric, budget, shares=self.looks * self._timed()
            )
            return self._explained(verdict, metric, budget.phase)
        figure = self.measured.values.counts[name]
        fine = figure <= budget.limit if budget.bound == "max" else figure >= budget.limit
        off = number(abs(figure - budget.limit), metric.unit)
        side = "over" if budget.bound == "max" else "short"
        verdict = replace(
            blank,
            verdict=PASS if fine else FAIL,
            measured=figure,
            text="" if fine else f"{off} {side}",
        )
        return self._explained(verdict, metric, budget.phase)

    def _unknown(self, metric: Metric, phase: str | None) -> str | None:
        """Why there is no figure; None where there is one."""
        if metric.name in self.measured.unknown:
            return self.measured.unknown[metric.name]
        values = self.measured.values
        if metric.exact and key(metric.name, phase) not in values.counts:
            return f"the capture has no {phase} graph"
        if not metric.exact and not runs_of(values, metric, phase):
            return f"{phase or whole_phase(values)} was not timed"
        return None

    def _explained(self, verdict: Verdict, metric: Metric, phase: str | None) -> Verdict:
        if verdict.verdict != FAIL:
            return verdict
        context = Context(self.measured, phase, self.base, self.compared)
        evidence = explain(metric.evidence, context)
        return replace(verdict, evidence=(*verdict.evidence, *evidence.lines), frame=evidence.frame)

    # --- a baseline

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

    def _compared(self, base: Baseline) -> list[Verdict]:
        if not self._same_kind(base):
            return [_other_kind(self.measured.values.environment, base.environment)]
        verdicts = []
        among = self._timed()
        for metric, phase, named in self._to_compare():
            if not (self._is_on_both(metric, phase, base) or named):
                continue
            allowed = self.budgets.allowed(metric, phase)
            problem = self._unknown(metric, phase)
            if problem is None and not known(base, metric, phase):
                problem = "the baseline does not have it"
            if problem is not None:
                blank = Verdict(
                    key(metric.name, phase), metric.unit, UNKNOWN, "baseline", allowed.source
                )
                verdicts.append(replace(blank, text=f"not compared: {problem}"))
            elif metric.exact:
                verdicts.append(self._count(base, metric, phase, allowed))
            else:
                verdict = times.against_baseline(
                    self.measured.values,
                    base,
                    metric,
                    phase,
                    allowed,
                    looks=self.looks,
                    among=among,
                )
                verdicts.append(self._explained(verdict, metric, phase))
        if not verdicts:
            blank = Verdict("baseline", "", UNKNOWN, "baseline", "default")
            verdicts.append(replace(blank, text="the two have no figure in common"))
        return verdicts

    def _is_on_both(self, metric: Metric, phase: str | None, base: Baseline) -> bool:
        return self._unknown(metric, phase) is None and known(base, metric, phase)

    def _count(
        self, base: Baseline, metric: Metric, phase: str | None, allowed: Increase
    ) -> Verdict:
        name = key(metric.name, phase)
        figure, before = self.measured.values.counts[name], base.counts[name]
        room = (allowed.amount if allowed.share is None else before * allowed.share) or 0
        change = figure - before
        # 29 % of 100 is 28.999999999999996 in floating point.
        fine = change <= room or math.isclose(change, room, rel_tol=1e-9)
        unit = metric.unit
        if change == 0:
            text = "the same"
        else:
            text = f"{number(abs(change), unit)} {'less' if change < 0 else 'more'}"
        verdict = Verdict(
            name,
            unit,
            PASS if fine else FAIL,
            f"baseline {number(before, unit)}"
            + (f" + {times.allowed_text(allowed, unit)}" if room else ""),
            allowed.source,
            text,
            measured=figure,
            baseline=before,
        )
        return self._explained(verdict, metric, phase)

    def notes(self) -> list[str]:
        """What differs from the baseline and may explain a count; what could not be compared."""
        base, here = self.base, self.measured.values
        if base is None or not self._same_kind(base):
            return []
        notes = []
        different = [
            f"{name} {before} there, {now} here"
            for name, before, now in (
                ("GPU", base.environment.device, here.environment.device),
                ("torch", base.environment.torch, here.environment.torch),
                ("CUDA", base.environment.cuda_runtime, here.environment.cuda_runtime),
                *_options(base, here),
            )
            if before != now
        ]
        if different:
            notes.append(f"the baseline differs: {'; '.join(different)}")
        by_default = [(metric, phase) for metric, phase, named in self._to_compare() if not named]
        unmeasured = [
            metric.name
            for metric, phase in by_default
            if known(base, metric, phase) and self._unknown(metric, phase) is not None
        ]
        if unmeasured:
            notes.append(f"in the baseline and not measured here: {', '.join(unmeasured)}")
        # Every capture has these: cgtool wrote no baseline without them.
        absent = [
            metric.name
            for metric, phase in by_default
            if metric.source == "capture"
            and self._unknown(metric, phase) is None
            and not known(base, metric, phase)
        ]
        if absent:
            notes.append(f"not in the baseline, so not compared: {', '.join(absent)}")
        return notes


def _options(there: Baseline, here: Baseline) -> Iterator[tuple[str, str | None, str | None]]:
    """Options that change what is captured."""
    before = {option.name: option.value for option in there.entry.options}
    now = {option.name: option.value for option in here.entry.options}
    for option in capture_options():
        if option.changes_graph and option.name in before and option.name in now:
            yield option.name, before[option.name], now[option.name]


def _other_kind(here: Environment, there: Environment) -> Verdict:
    ops = "ops on the simulated device"
    nodes = f"nodes on {(there if here.simulated else here).device}"
    theirs, ours = (nodes, ops) if here.simulated else (ops, nodes)
    return Verdict(
        "baseline",
        "",
        UNKNOWN,
        "baseline",
        "default",
        f"not compared: the baseline counts {theirs}, and this is {ours}",
        evidence=("one op launches any number of kernels, so the two never agree",),
    )
