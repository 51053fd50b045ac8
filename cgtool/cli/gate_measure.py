"""Entries measured for a gate: as far as what they are held to needs it, and until it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from cgtool.analysis.gate.budgets import Budgets
from cgtool.analysis.gate.evidence import Measured
from cgtool.analysis.gate.judge import judge as judge_target
from cgtool.analysis.gate.measured import measure
from cgtool.analysis.gate.metrics import BY_NAME, METRICS, known, runs_of
from cgtool.analysis.gate.report import Judged, not_measured
from cgtool.analysis.timing.regression import LOOKS, wanted
from cgtool.cli.attempts import Measuring
from cgtool.cli.gate_targets import Base, Target
from cgtool.cli.output import show_bug, show_failure
from cgtool.cli.sequential_runs import Look, Runs, until_told
from cgtool.model.baseline import Baseline
from cgtool.model.failure import EXIT_BUG, EXIT_MACHINE, CgtoolError, Failure


class Holding:
    """What a target is held to: known only when it is known what it was measured on."""

    def __init__(
        self,
        budgets: Callable[[str, bool], Budgets],
        baseline: Callable[[str, Budgets], Base | None],
    ) -> None:
        self.budgets, self._baseline = budgets, baseline

    def of(self, spec: str, *, simulated: bool) -> tuple[Budgets, Base | None]:
        """Budgets and baseline of an entry on a GPU, or on the simulated device."""
        budgets = self.budgets(spec, simulated)
        return budgets, self._baseline(spec, budgets)


def outcome(
    target: Target, holding: Holding, measuring: Measuring, *, save: bool
) -> tuple[Judged, Baseline | None]:
    """One target's verdicts and figures; where it could not be measured, why not, which standard
    error is told too: in CI, the results are what people look at."""
    try:
        judged, found = judge(target, holding, measuring, save=save)
    except CgtoolError as error:
        show_failure(error.failure)
        failure = error.failure
    except Exception as error:
        show_bug(error)
        failure = Failure(f"a bug in cgtool: {type(error).__name__}: {error}", EXIT_BUG)
    else:
        return judged, found.values
    return not_measured(target.spec, failure, target.files), None


def judge(
    target: Target, holding: Holding, measuring: Measuring, *, save: bool
) -> tuple[Judged, Measured]:
    """One target's verdicts, and what they were made from. An entry is measured as far as its
    budgets and its baseline need it; with ``save``, as far as a baseline does."""
    if target.live:
        return _measured(target, holding, measuring, save=save)
    found = measure(target.captures, target.reports)
    simulated = found.values.environment.simulated
    return _judged(target, found, holding.of(target.spec, simulated=simulated), LOOKS), found


def _judged(
    target: Target, found: Measured, held: tuple[Budgets, Base | None], looks: int
) -> Judged:
    budgets, base = held
    return judge_target(
        found,
        budgets,
        base.values if base else None,
        compared=base.capture if base else None,
        files=target.files,
        baseline_file=str(base.path) if base else None,
        looks=looks,
    )


def _measured(
    target: Target, holding: Holding, measuring: Measuring, *, save: bool
) -> tuple[Judged, Measured]:
    runs = Runs(lambda: measuring.bench(target.spec), measuring.max_seconds, ahead=measuring.ahead)
    target = replace(target, captures=runs.captures, reports=list(target.reports))
    asked = measuring.options.device == "simulated"
    needs = _first_needs(target.spec, holding, measuring, save=save)
    no_times = _first(target, runs, needs, measuring, simulated=asked)
    simulated = (target.captures or target.reports)[0].environment.simulated
    held = holding.of(target.spec, simulated=simulated)
    needs = _needs(held, save=save)
    if not target.captures and needs & {"capture", "bench"}:
        no_times = _first(target, runs, needs, measuring, simulated=simulated)
    for command, run in (("check", measuring.check), ("verify", measuring.verify)):
        if command in needs and command not in {one.command for one in target.reports}:
            target.reports.append(run(target.spec))

    def look(looks: int) -> Look[tuple[Judged, Measured]]:
        found = measure(target.captures, target.reports)
        if no_times is not None:
            unknown = {one.name: no_times for one in METRICS if one.source == "bench"}
            found = structs.replace(found, unknown={**found.unknown, **unknown})
        judged = _judged(target, found, held, looks)
        verdicts = judged.verdicts
        return Look(
            (judged, found),
            any(one.open for one in verdicts),
            any(one.compared for one in verdicts),
        )

    if not target.captures:
        return look(LOOKS).found
    if save and target.captures[0].bench is not None:
        _for_baseline(runs, held[0], measuring.max_runs)
    (judged, found), note = until_told(runs, look, most=measuring.max_runs)
    if note is not None:
        judged = structs.replace(judged, notes=(*judged.notes, note))
    return judged, found


def _for_baseline(runs: Runs, budgets: Budgets, most: int) -> None:
    """As many runs as a baseline with their spread should hold, for what replays are allowed. Those
    that are left out of the times do not count."""
    replay = BY_NAME["replay-us"]
    allowed = budgets.allowed(replay, None).share or 0.0
    in_time = True
    while in_time and len(runs.captures) < most:
        replays = runs_of(measure(runs.captures).values, replay, None)
        missing = wanted(replays, allowed) - len(replays)
        if missing <= 0:
            return
        in_time = runs.up_to(min(len(runs.captures) + missing, most))


def _first_needs(spec: str, holding: Holding, measuring: Measuring, *, save: bool) -> set[str]:
    """What has to run, as far as that is known before anything has: there may be a GPU, or none."""
    asked = measuring.options.device
    try:
        return _needs(holding.of(spec, simulated=asked == "simulated"), save=save)
    except CgtoolError:
        if asked is not None or holding.budgets(spec, True) == holding.budgets(spec, False):
            raise
        # What fails is of a GPU, and not asked for where there is none: a capture tells.
        return {"capture"}


def _needs(held: tuple[Budgets, Base | None], *, save: bool) -> set[str]:
    """Which commands have to run: ``capture``, ``bench``, ``check``, ``verify``."""
    budgets, base = held
    named = [one.metric for one in budgets.limits] + [one.metric for one in budgets.increases]
    found = {BY_NAME[one].source for one in named}
    if base is not None:
        found |= {one.source for one in METRICS if one.watched and known(base.values, one, None)}
    return found | ({"capture", "bench"} if save else set())


def _first(
    target: Target, runs: Runs, needs: set[str], measuring: Measuring, *, simulated: bool
) -> str | None:
    """Run what tells what this machine is; why there are no times, where there are none."""
    spec, why = target.spec, None
    if "bench" in needs and not simulated:
        try:
            runs.one()
        except CgtoolError as error:
            if error.failure.exit_code != EXIT_MACHINE:
                raise
            why = error.failure.what
        else:
            return None
    if needs & {"capture", "bench"}:
        runs.run = lambda: measuring.capture(spec)
        runs.one()
    elif not target.reports:
        target.reports.append(measuring.check(spec) if "check" in needs else measuring.verify(spec))
    return why
