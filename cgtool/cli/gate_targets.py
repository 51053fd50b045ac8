"""The targets of a gate: saved captures and reports, baselines, and entries, which are measured as
far as their budgets and baselines need it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from cgtool.analysis.gate.budgets import Budgets, same_entry
from cgtool.analysis.gate.evidence import Measured, as_typed
from cgtool.analysis.gate.judge import Judged, not_measured
from cgtool.analysis.gate.judge import judge as judge_target
from cgtool.analysis.gate.measured import measure
from cgtool.analysis.gate.metrics import BY_NAME, METRICS, known, runs_of
from cgtool.analysis.timing.regression import LOOKS, wanted
from cgtool.cli.output import show_bug, show_failure
from cgtool.cli.workers import Look, Measuring, Runs, until_decided
from cgtool.model import baseline as baselines
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture, Frame
from cgtool.model.capture_file import read
from cgtool.model.failure import EXIT_BUG, EXIT_MACHINE, CgtoolError, Failure, usage
from cgtool.model.files import JsonFormat, is_file
from cgtool.model.finding import REPORT_VERSION, Report
from cgtool.model.sources import Sources
from cgtool.program.spec import parse_entry

_REPORTS = {"cgtool-check": "check", "cgtool-verify": "verify"}
"""The schemas of reports, and the command that writes each."""
_REPORT_FORMAT = JsonFormat(
    "report of check or verify",
    dict.fromkeys(_REPORTS, REPORT_VERSION),
    "with `cgtool check ENTRY --format json -o FILE`, or `cgtool verify`",
)


@dataclass
class Target:
    """One entry: its saved captures and reports, or what is measured."""

    spec: str
    captures: list[Capture] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    files: tuple[str, ...] = ()
    live: bool = False
    """To be measured now."""


@dataclass(frozen=True)
class Base:
    """A baseline, and the capture that it was taken from, if there is one."""

    path: Path
    values: Baseline
    capture: Capture | None = None


def open_targets(names: Sequence[str]) -> list[Target]:
    """One target for each capture and ENTRY; a report belongs to the target of its entry.

    Raises CgtoolError (exit 2) for what is neither.
    """
    targets: list[Target] = []
    loose: list[tuple[str, Report]] = []
    for name in names:
        path = Path(name)
        exists = is_file(path) and ":" not in name
        if name.endswith(".cgt") or (exists and _is_zip(path)):
            capture = read(path)
            targets.append(Target(capture.entry.spec, [capture], files=(name,)))
        elif name.endswith(".json") or (exists and path.suffix != ".py"):
            loose.append((name, _report(path)))
        else:
            if ":" not in name.removesuffix(":"):
                parse_entry(name)  # says what is missing
            targets.append(Target(name, live=True))
    for name, report in loose:
        owners = [target for target in targets if same_entry(target.spec, report.entry.spec)]
        if not owners:
            owners = [Target(report.entry.spec)]
            targets += owners
        for target in owners:
            target.reports.append(report)
            target.files += (name,)
    return targets


def _report(path: Path) -> Report:
    schema, report = _REPORT_FORMAT.read(path, Report)
    if report.command != _REPORTS[schema]:
        raise _REPORT_FORMAT.bad(path, f"{schema} of the command {report.command[:80]!r}")
    if report.interrupted:
        raise usage(f"{path}: the check was interrupted", fix="check it again, to its end")
    return report


def _is_zip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"PK"
    except OSError:
        # Reading it reports the error.
        return False


def open_baseline(path: Path) -> Base:
    """A baseline file, or a capture that serves as one. Raises CgtoolError (exit 2)."""
    if path.suffix == ".cgt" or (is_file(path) and _is_zip(path)):
        capture = read(path)
        return Base(path, measure([capture]).values, capture)
    return Base(path, baselines.read(path))


# --- verdicts

Limits = Callable[[bool], tuple[Budgets, Base | None]]
"""Budgets and baseline of a target, which depend on the device that it was measured on: given
whether that is the simulated one. Raises CgtoolError."""


def judge_or_report(
    target: Target, limits: Limits, measuring: Measuring, *, save: bool
) -> tuple[Judged, Baseline | None]:
    """One target's verdicts and figures; where it could not be measured, the reason, which goes to
    standard error too: in CI, people look at the results."""
    try:
        judged, measured = judge(target, limits, measuring, save=save)
    except CgtoolError as error:
        show_failure(error.failure)
        failure = error.failure
    except Exception as error:
        show_bug(error)
        failure = Failure(f"a bug in cgtool: {type(error).__name__}: {error}", EXIT_BUG)
    else:
        return judged, measured.values
    return not_measured(target.spec, failure, target.files), None


def judge(
    target: Target, limits: Limits, measuring: Measuring, *, save: bool
) -> tuple[Judged, Measured]:
    """One target's verdicts, and the figures that they are made from. An entry is measured as far
    as its budgets and its baseline need it; with ``save``, as far as a baseline does."""
    if target.live:
        return _judge_live(target, limits, measuring, save=save)
    measured = measure(target.captures, target.reports)
    simulated = measured.values.environment.simulated
    judged = _judge(target, measured, *limits(simulated), LOOKS)
    for capture in target.captures:
        judged = _without_moved_lines(judged, capture)
    return judged, measured


def _without_moved_lines(judged: Judged, capture: Capture) -> Judged:
    """Without the lines that are other ones here than where they were captured: an annotation
    there would be at code that it is not about."""
    saved = Sources(
        structs.replace(source, file=as_typed(Frame(source.file, 1, ""), capture.entry).file)
        for source in capture.sources
    )
    moved = [each for each in judged.verdicts if each.frame and saved.has_moved(each.frame)]
    files = sorted({each.frame.file for each in moved if each.frame})
    notes = (f"{file} has changed since the capture: its lines are not annotated" for file in files)
    verdicts = (
        structs.replace(each, frame=None) if each in moved else each for each in judged.verdicts
    )
    return structs.replace(judged, verdicts=tuple(verdicts), notes=(*judged.notes, *notes))


def _judge(
    target: Target, measured: Measured, budgets: Budgets, base: Base | None, looks: int
) -> Judged:
    return judge_target(
        measured,
        budgets,
        base.values if base else None,
        compared=base.capture if base else None,
        files=target.files,
        baseline_file=str(base.path) if base else None,
        looks=looks,
    )


def _judge_live(
    target: Target, limits: Limits, measuring: Measuring, *, save: bool
) -> tuple[Judged, Measured]:
    runs = Runs(lambda: measuring.bench(target.spec), measuring.max_seconds, ahead=measuring.ahead)
    target = replace(target, captures=runs.captures, reports=list(target.reports))
    needs = _first_needs(limits, measuring.capture_options.device, save=save)
    on_simulated = measuring.capture_options.device == "simulated"
    untimed = _measure_first(target, runs, needs, measuring, simulated=on_simulated)
    simulated = (target.captures or target.reports)[0].environment.simulated
    budgets, base = limits(simulated)
    needs = _needs(budgets, base, save=save)
    if not target.captures and needs & {"capture", "bench"}:
        untimed = _measure_first(target, runs, needs, measuring, simulated=simulated)
    for command, run in (("check", measuring.check), ("verify", measuring.verify)):
        if command in needs and all(report.command != command for report in target.reports):
            target.reports.append(run(target.spec))

    def look(looks: int) -> Look[tuple[Judged, Measured]]:
        measured = measure(target.captures, target.reports)
        if untimed is not None:
            times = {metric.name: untimed for metric in METRICS if metric.source == "bench"}
            measured = structs.replace(measured, unknown={**measured.unknown, **times})
        judged = _judge(target, measured, budgets, base, looks)
        return Look(
            (judged, measured),
            any(verdict.open for verdict in judged.verdicts),
            any(verdict.compared for verdict in judged.verdicts),
        )

    if not target.captures:
        return look(LOOKS).result
    if save and target.captures[0].bench is not None:
        _run_for_baseline(runs, budgets, measuring.max_runs)
    (judged, measured), note = until_decided(runs, look, most=measuring.max_runs)
    if note is not None:
        judged = structs.replace(judged, notes=(*judged.notes, note))
    return judged, measured


def _run_for_baseline(runs: Runs, budgets: Budgets, most: int) -> None:
    """Measures as many runs as a baseline with their spread should have, for the tolerance of
    replays. Those that are left out of the times do not count."""
    replay = BY_NAME["replay-us"]
    allowed = budgets.allowed(replay, None).share or 0.0
    in_time = True
    while in_time and len(runs.captures) < most:
        replays = runs_of(measure(runs.captures).values, replay, None)
        missing = wanted(replays, allowed) - len(replays)
        if missing <= 0:
            return
        in_time = runs.up_to(min(len(runs.captures) + missing, most))


def _first_needs(limits: Limits, device: str | None, *, save: bool) -> set[str]:
    """Which commands must run, as far as that is known before it is known whether there is a
    GPU."""
    try:
        return _needs(*limits(device == "simulated"), save=save)
    except CgtoolError as error:
        if device is not None:
            raise
        try:
            limits(True)
        except CgtoolError as simulated:
            if simulated.failure == error.failure:
                raise
        # The error is in the limits of a GPU, which do not apply if there is none: a capture
        # shows which it is.
        return {"capture"}


def _needs(budgets: Budgets, base: Base | None, *, save: bool) -> set[str]:
    """Which commands have to run: ``capture``, ``bench``, ``check``, ``verify``."""
    names = {budget.metric for budget in budgets.limits}
    names |= {increase.metric for increase in budgets.increases}
    sources = {BY_NAME[name].source for name in names}
    if base is not None:
        sources |= {
            metric.source
            for metric in METRICS
            if metric.watched and known(base.values, metric, None)
        }
    return sources | ({"capture", "bench"} if save else set())


def _measure_first(
    target: Target, runs: Runs, needs: set[str], measuring: Measuring, *, simulated: bool
) -> str | None:
    """The first measurement, which shows what this machine is; why there are no times, if there
    are none."""
    spec, untimed = target.spec, None
    if "bench" in needs and not simulated:
        try:
            runs.run_once()
        except CgtoolError as error:
            if error.failure.exit_code != EXIT_MACHINE:
                raise
            untimed = error.failure.message
        else:
            return None
    if needs & {"capture", "bench"}:
        runs.run = lambda: measuring.capture(spec)
        runs.run_once()
    elif not target.reports:
        target.reports.append(measuring.check(spec) if "check" in needs else measuring.verify(spec))
    return untimed
