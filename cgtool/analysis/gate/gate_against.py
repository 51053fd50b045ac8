"""One target and all that it is held to: a verdict for each figure."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from cgtool.analysis.gate import gate_times
from cgtool.analysis.gate.budgets import Budget, Budgets, Increase
from cgtool.analysis.gate.evidence import Evidence, explain
from cgtool.analysis.gate.gate_verdict import FAIL, PASS, UNKNOWN, Verdict, number
from cgtool.analysis.gate.measured import Measured
from cgtool.analysis.gate.metrics import (
    BY_NAME,
    METRICS,
    Metric,
    key,
    known,
    runs_of,
    whole_phase,
)
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture, Environment
from cgtool.model.options import capture_options


class Against(msgspec.Struct, frozen=True):
    """One target with all that it is held to."""

    measured: Measured
    budgets: Budgets
    base: Baseline | None
    compared: Capture | None
    """The capture that the baseline was taken from."""
    looks: int
    """How often times are judged at most, with more runs each time."""

    def verdicts(self) -> list[Verdict]:
        """One for each budget, then one for each figure that is held against the baseline."""
        found = [self._budget(one) for one in self.budgets.limits]
        return found if self.base is None else found + self._baseline(self.base)

    def _times(self) -> int:
        """How many times are judged: any of them can fail the target by chance."""
        limits = [(BY_NAME[one.metric], one.phase) for one in self.budgets.limits]
        found = sum(not one.exact and self._unknown(one, phase) is None for one, phase in limits)
        if self.base is None or not self._alike(self.base):
            return found
        return found + sum(
            not one.exact and self._has(one, phase, self.base) for one, phase, _ in self._asked()
        )

    def _alike(self, base: Baseline) -> bool:
        return self.measured.values.environment.simulated == base.environment.simulated

    def _evidence(self, metric: Metric, phase: str | None) -> Evidence:
        return explain(self.measured, metric, phase, self.base, self.compared)

    def _budget(self, budget: Budget) -> Verdict:
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
            found = gate_times.against_limit(
                blank, self.measured.values, metric, budget, shares=self.looks * self._times()
            )
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

    def _baseline(self, base: Baseline) -> list[Verdict]:
        if not self._alike(base):
            return [_not_alike(self.measured.values.environment, base.environment)]
        found = []
        among = self._times()
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
                    self.measured.values,
                    base,
                    metric,
                    phase,
                    allowed,
                    looks=self.looks,
                    among=among,
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
        # 29 % of 100 is 28.999999999999996 in floating point.
        fine = change <= (room or 0) or math.isclose(change, room or 0, rel_tol=1e-9)
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

    def notes(self) -> list[str]:
        """What differs from the baseline and may explain a count; what could not be compared."""
        base, here = self.base, self.measured.values
        if base is None or not self._alike(base):
            return []
        found = []
        differ = [
            f"{name} {before} there, {now} here"
            for name, before, now in (
                ("GPU", base.environment.device, here.environment.device),
                ("torch", base.environment.torch, here.environment.torch),
                ("CUDA", base.environment.cuda_runtime, here.environment.cuda_runtime),
                *_options(base, here),
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
        # Every capture has these: a baseline without one was not written so.
        lost = [
            metric.name
            for metric, phase, named in self._asked()
            if not named
            and metric.source == "capture"
            and self._unknown(metric, phase) is None
            and not known(base, metric, phase)
        ]
        if lost:
            found.append(f"not in the baseline, and held by nothing: {', '.join(lost)}")
        return found


def _options(there: Baseline, here: Baseline) -> Iterator[tuple[str, str | None, str | None]]:
    """Options that change what is captured."""
    before = {one.name: one.value for one in there.entry.options}
    now = {one.name: one.value for one in here.entry.options}
    for option in capture_options():
        if option.changes_graph and option.name in before and option.name in now:
            yield option.name, before[option.name], now[option.name]


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
