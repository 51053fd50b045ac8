"""Entries measured for a gate: as far as what they are held to needs it, and until it is told."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from cgtool.analysis import comparable, gate, graph_findings, metrics
from cgtool.analysis.budgets import Budgets
from cgtool.analysis.gate_verdict import UNKNOWN
from cgtool.analysis.measured import Measured, measure
from cgtool.analysis.regression import ENOUGH, schedule
from cgtool.cli.gate_targets import Base, Target
from cgtool.cli.output import attempt, work
from cgtool.model.capture import Capture
from cgtool.model.failure import EXIT_MACHINE, CgtoolError
from cgtool.model.file import read
from cgtool.model.finding import Report, read_report
from cgtool.model.options import (
    BenchOptions,
    CaptureOptions,
    CheckOptions,
    Request,
    VerifyOptions,
)

FIRST_RUNS = 3
"""Before times are held against a baseline."""


@dataclass
class Measuring:
    """Worker processes for one entry, with the options of the command line."""

    options: CaptureOptions
    inputs: tuple[str, ...]
    folder: Path
    timeout: float | None
    quiet: bool
    max_seconds: float
    max_runs: int
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def capture(self, spec: str) -> Capture:
        return self._attempt(spec, None)

    def bench(self, spec: str) -> Capture:
        """One run. Raises CgtoolError (exit 3) where there is no GPU."""
        return self._attempt(spec, BenchOptions())

    def _attempt(self, spec: str, bench: BenchOptions | None) -> Capture:
        return attempt(
            spec,
            self.folder / f"{next(self._numbers)}.cgt",
            inputs=self.inputs,
            options=self.options,
            bench=bench,
            timeout=self.timeout,
            quiet=self.quiet,
        )

    def check(self, spec: str) -> Report:
        saved = self.folder / f"{next(self._numbers)}.json"
        self._work(Request(spec, str(saved), self.inputs, self.options, check=CheckOptions()))
        report = read_report(saved)
        if (captured := saved.with_suffix(".cgt")).exists():
            more = graph_findings.look(read(captured))
            report = structs.replace(report, findings=(*report.findings, *more))
        return report

    def verify(self, spec: str) -> Report:
        saved = self.folder / f"{next(self._numbers)}.json"
        self._work(Request(spec, str(saved), self.inputs, self.options, verify=VerifyOptions()))
        return read_report(saved)

    def _work(self, request: Request) -> None:
        work(request, timeout=self.timeout, quiet=self.quiet)


class Holding:
    """What a target is held to: known only when it is known what it was measured on."""

    def __init__(
        self,
        budgets: Callable[[str, bool], Budgets],
        baseline: Callable[[str, Budgets], Base | None],
    ) -> None:
        self._budgets, self._baseline = budgets, baseline

    def of(self, spec: str, *, simulated: bool) -> tuple[Budgets, Base | None]:
        """Budgets and baseline of an entry on a GPU, or on the simulated device."""
        budgets = self._budgets(spec, simulated)
        return budgets, self._baseline(spec, budgets)


def judge(
    target: Target, holding: Holding, measuring: Measuring, *, save: bool
) -> tuple[gate.Judged, Measured]:
    """One target's verdicts, and what they were made from. An entry is measured as far as its
    budgets and its baseline need it; with ``save``, as far as a baseline does."""
    if target.live:
        return _measured(target, holding, measuring, save=save)
    found = measure(target.captures, target.reports)
    simulated = found.values.environment.simulated
    return _judged(target, found, holding.of(target.spec, simulated=simulated)), found


def _judged(target: Target, found: Measured, held: tuple[Budgets, Base | None]) -> gate.Judged:
    budgets, base = held
    return gate.judge(
        found,
        budgets,
        base.values if base else None,
        compared=base.capture if base else None,
        files=target.files,
        baseline_file=str(base.path) if base else None,
    )


def _measured(
    target: Target, holding: Holding, measuring: Measuring, *, save: bool
) -> tuple[gate.Judged, Measured]:
    target = replace(target, captures=[], reports=list(target.reports))
    asked = measuring.options.device == "simulated"
    needs = _needs(holding.of(target.spec, simulated=asked), save=save)
    no_times = _first(target, needs, measuring, simulated=asked)
    simulated = (target.captures or target.reports)[0].environment.simulated
    held = holding.of(target.spec, simulated=simulated)
    needs = _needs(held, save=save)
    if not target.captures and needs & {"capture", "bench"}:
        no_times = _first(target, needs, measuring, simulated=simulated)
    for command, run in (("check", measuring.check), ("verify", measuring.verify)):
        if command in needs and command not in {one.command for one in target.reports}:
            target.reports.append(run(target.spec))
    return _until_told(target, held, measuring, no_times, save=save)


def _needs(held: tuple[Budgets, Base | None], *, save: bool) -> set[str]:
    """Which commands have to run: ``capture``, ``bench``, ``check``, ``verify``."""
    budgets, base = held
    named = [one.metric for one in budgets.limits] + [one.metric for one in budgets.increases]
    found = {metrics.BY_NAME[one].source for one in named}
    if base is not None:
        found |= {
            one.source
            for one in metrics.METRICS
            if one.watched and metrics.known(base.values, one, None)
        }
    return found | ({"capture", "bench"} if save else set())


def _first(target: Target, needs: set[str], measuring: Measuring, *, simulated: bool) -> str | None:
    """Run what tells what this machine is; why there are no times, where there are none."""
    spec, why = target.spec, None
    if "bench" in needs and not simulated:
        try:
            target.captures.append(measuring.bench(spec))
        except CgtoolError as error:
            if error.failure.exit_code != EXIT_MACHINE:
                raise
            why = error.failure.what
        else:
            return None
    if needs & {"capture", "bench"}:
        target.captures.append(measuring.capture(spec))
    elif not target.reports:
        target.reports.append(measuring.check(spec) if "check" in needs else measuring.verify(spec))
    return why


def _until_told(
    target: Target,
    held: tuple[Budgets, Base | None],
    measuring: Measuring,
    no_times: str | None,
    *,
    save: bool,
) -> tuple[gate.Judged, Measured]:
    """Measure on while a time cannot be told that more runs may tell."""
    deadline = time.monotonic() + measuring.max_seconds
    timed = bool(target.captures) and target.captures[0].bench is not None
    run = measuring.bench if timed else measuring.capture

    def up_to(count: int) -> bool:
        """More runs until there are so many; whether there was time for all."""
        while len(target.captures) < count:
            if time.monotonic() > deadline:
                return False
            target.captures.append(run(target.spec))
        return True

    def look() -> tuple[gate.Judged, Measured]:
        found = measure(target.captures, target.reports)
        if no_times is not None:
            unknown = dict.fromkeys(("replay-us", "eager-us", "speedup"), no_times)
            found = structs.replace(found, unknown={**found.unknown, **unknown})
        return _judged(target, found, held), found

    if save and timed:
        up_to(min(ENOUGH, measuring.max_runs))
    judged, found = look()
    compared = any(one.ratio is not None for one in judged.verdicts)
    # Set before more is measured, so that the runs cannot choose when they are judged.
    looks = schedule(min(FIRST_RUNS if compared else 1, measuring.max_runs), measuring.max_runs)
    for count in looks:
        if not (_is_open(judged, found) or (compared and len(target.captures) < looks[0])):
            return judged, found
        in_time = up_to(count)
        judged, found = look()
        if not in_time:
            break
    if _is_open(judged, found):
        note = (
            f"timed in {len(target.captures)} runs, and no more: --max-runs and --max-seconds say "
            "how many"
        )
        judged = structs.replace(judged, notes=(*judged.notes, note))
    return judged, found


def _is_open(judged: gate.Judged, found: Measured) -> bool:
    """Whether more runs may tell what cannot be told."""
    disturbed = comparable.disturbed(found.values.clock, "meanwhile")
    for one in judged.verdicts:
        metric = metrics.BY_NAME.get(one.metric.partition(".")[0])
        if one.verdict != UNKNOWN or one.measured is None or metric is None:
            continue
        if one.low is not None or one.ratio is not None:
            return True
        if metric.source == "bench" and disturbed:
            # The next run may be left in peace.
            return True
    return False
