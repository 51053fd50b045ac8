"""``cgtool gate``: budgets and baselines, one verdict, for CI."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cgtool.cli import options as opt
from cgtool.cli.gate_options import with_budgets
from cgtool.model.failure import EXIT_USAGE, CgtoolError, usage
from cgtool.model.options import MAX_RUNS, MAX_SECONDS, CaptureOptions

if TYPE_CHECKING:
    from cgtool.analysis.gate.budgets import Budgets, Project
    from cgtool.cli.gate_targets import Base, Target
    from cgtool.model.baseline import Baseline

EPILOG = (
    "A budget holds for the whole, or for one phase: --max-nodes 400, --max-nodes backward=300. "
    "The same names stand in pyproject.toml under [tool.cgtool.gate], and under "
    '[tool.cgtool.gate."model.py:build"] for one entry; options go before them.\n\n'
    "Exit codes: 0 all pass, 1 one fails, 5 none fails and one cannot be told, 2 wrong use."
)


@opt.captures
@with_budgets
def gate(
    *,
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET",
            help=".cgt files, JSON of `cgtool check` and `cgtool verify`, or an ENTRY, which is "
            "measured as its budgets need.",
        ),
    ],
    limits: dict[str, list[str] | None],
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Compare with this: a baseline or a .cgt file; repeatable, one an entry.",
        ),
    ] = None,
    save_baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what was measured as a baseline."),
    ] = None,
    max_increase: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=N|N%",
            help="How much worse than the baseline a metric may be; repeatable. Counts 0, times "
            "1% by default.",
        ),
    ] = None,
    max_regression: Annotated[
        str | None, typer.Option(metavar="N%", help="Short for --max-increase replay-us=N%.")
    ] = None,
    max_runs: Annotated[
        int, typer.Option(min=1, help="Worker processes that time an ENTRY, at most.")
    ] = MAX_RUNS,
    max_seconds: Annotated[
        float, typer.Option(min=0.1, help="Begin no further run of an ENTRY after this long.")
    ] = MAX_SECONDS,
    output: opt.Output = None,
    format_: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="FORMAT[=FILE]",
            help="table, json, junit, github or benchmark-action; repeatable.",
        ),
    ] = None,
    capture_options: CaptureOptions,
    timeout: opt.Timeout = None,
    quiet: opt.Quiet = False,
) -> None:
    """Hold TARGETs to budgets and baselines; exit 1 when one fails, 5 when one cannot be told."""
    from msgspec import structs

    from cgtool.analysis.gate.budgets import from_options
    from cgtool.analysis.gate.report import exit_code, gate_report
    from cgtool.cli import gate_formats, gate_measure, gate_targets, project
    from cgtool.cli.attempts import Measuring
    from cgtool.model import baseline as baselines

    given = from_options(limits, max_increase or (), max_regression)
    formats = gate_formats.parse(format_ or (), output)
    opened = gate_targets.open_targets(targets)
    if save_baseline is not None and len(opened) > 1:
        raise usage("--save-baseline holds one entry, and several are given")
    own = project.find(Path.cwd())
    held = [*(baseline or ()), *_named(own, [one.spec for one in opened])]
    gate_formats.check_places(formats, targets, held, save_baseline)
    bases = _match([gate_targets.open_baseline(path) for path in baseline or ()], opened)
    doubts = [] if own is None else project.doubts(own, [one.spec for one in opened])
    holding = gate_measure.Holding(
        lambda spec, simulated: _budgets(given, own, spec, simulated=simulated),
        lambda spec, held: _baseline(bases, spec, held, saving=save_baseline is not None),
    )
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        measuring = Measuring(
            capture_options,
            Path(folder),
            timeout,
            quiet,
            max_seconds,
            max_runs,
        )
        found, values = [], None
        for one in opened:
            judged, values = gate_measure.outcome(
                one, holding, measuring, save=save_baseline is not None
            )
            told = tuple(doubt for spec, doubt in doubts if spec == one.spec)
            found.append(structs.replace(judged, notes=judged.notes + told))
            if judged.error is not None and judged.error.exit_code == EXIT_USAGE:
                # What is asked for is wrong: measuring the rest helps nobody.
                break
    report = gate_report(tuple(found))
    if save_baseline is not None and values is not None:
        baselines.write(save_baseline, values)
    gate_formats.write(report, formats, quiet=quiet)
    if save_baseline is not None and values is not None and not quiet:
        sys.stderr.write(f"saved {save_baseline}\n")
        simulated = values.environment.simulated
        for doubt in _doubts(values, _budgets(given, own, opened[0].spec, simulated=simulated)):
            sys.stderr.write(f"  its times: {doubt}\n")
    code = exit_code(report)
    if code:
        raise typer.Exit(code)


def _budgets(given: Budgets, own: Project | None, spec: str, *, simulated: bool) -> Budgets:
    """Options before ``pyproject.toml``."""
    from cgtool.analysis.gate.budgets import checked, project_budgets

    return checked(
        given if own is None else given.over(project_budgets(own, spec, simulated=simulated))
    )


def _named(own: Project | None, specs: Sequence[str]) -> list[Path]:
    """The baselines that ``pyproject.toml`` names, here and where there is no GPU. What is wrong in
    it is told when it is held to."""
    from cgtool.analysis.gate.budgets import project_budgets

    if own is None:
        return []
    with contextlib.suppress(CgtoolError):
        found = [
            project_budgets(own, spec, simulated=simulated).baseline
            for spec in specs
            for simulated in (False, True)
        ]
        return [one for one in found if one is not None]
    return []


def _match(bases: Sequence[Base], targets: Sequence[Target]) -> Sequence[Base]:
    """The same. Raises CgtoolError (exit 2) for a baseline of an entry that is not there, and for
    two of one."""
    from cgtool.analysis.gate.budgets import same_entry

    for at, one in enumerate(bases):
        spec = one.values.entry.spec
        if not any(same_entry(each.spec, spec) for each in targets):
            raise _another(one, ", ".join(each.spec for each in targets))
        for other in bases[:at]:
            if same_entry(other.values.entry.spec, spec):
                raise usage(f"{other.path} and {one.path} are both baselines of {spec}")
    return bases


def _another(base: Base, specs: str) -> Exception:
    return usage(
        f"{base.path} is a baseline of {base.values.entry.spec}, not of {specs}",
        why="figures of another entry say nothing of this one",
        fix="name its own baseline, or write one with --save-baseline FILE",
    )


def _baseline(bases: Sequence[Base], spec: str, held: Budgets, *, saving: bool) -> Base | None:
    """The one that the command line names, else that of ``pyproject.toml``; that one is not
    compared with while it is written."""
    from msgspec import structs

    from cgtool.analysis.gate.budgets import same_entry
    from cgtool.cli.gate_targets import open_baseline

    mine = next((one for one in bases if same_entry(spec, one.values.entry.spec)), None)
    if mine is None and held.baseline is not None and not saving:
        try:
            mine = open_baseline(held.baseline)
        except CgtoolError as error:
            why = error.failure.why or f"pyproject.toml names it as the baseline of {spec}"
            raise CgtoolError(structs.replace(error.failure, why=why)) from None
        if not same_entry(spec, mine.values.entry.spec):
            raise _another(mine, spec)
    if mine is None and not saving and not held.limits:
        raise usage(
            f"there is nothing to hold {spec} to",
            fix="give a budget (--max-nodes 400), a baseline (--baseline FILE), or "
            "[tool.cgtool.gate] in pyproject.toml; `cgtool gate --help` lists the budgets",
        )
    return mine


def _doubts(values: Baseline, budgets: Budgets) -> list[str]:
    """Why times held against this baseline may not be told."""
    from cgtool.analysis.gate.metrics import BY_NAME, runs_of
    from cgtool.analysis.timing.regression import wanted
    from cgtool.analysis.timing.runs import disturbances

    replay = BY_NAME["replay-us"]
    runs = runs_of(values, replay, None)
    found = disturbances(values.clock, "while they were measured") if runs else []
    if 0 < len(runs) < (enough := wanted(runs, budgets.allowed(replay, None).share or 0.0)):
        found.append(
            f"{len(runs)} of the {enough} runs that tell a small difference"
            + f" (--max-runs {enough})" * (enough > MAX_RUNS)
        )
    return found
