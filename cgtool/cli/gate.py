"""``cgtool gate``: budgets and baselines, one verdict, for CI."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from cgtool.analysis.gate.budgets import (
    NAMES,
    Budgets,
    checked,
    from_options,
    nearest,
    same_entry,
)
from cgtool.analysis.gate.judge import GateReport, exit_code, gate_report
from cgtool.analysis.gate.metrics import BY_NAME, runs_of
from cgtool.analysis.timing.regression import wanted
from cgtool.analysis.timing.runs import disturbances
from cgtool.cli import options as opt
from cgtool.cli.gate_project import (
    Project,
    find_project,
    misplaced_tables,
    project_budgets,
    project_targets,
)
from cgtool.cli.gate_targets import Base, judge_or_report, open_baseline, open_targets
from cgtool.cli.output import check_places, print_saved, show_failure, show_table, write_bytes
from cgtool.cli.workers import Measuring
from cgtool.model import baseline as baselines
from cgtool.model.baseline import Baseline
from cgtool.model.failure import EXIT_USAGE, CgtoolError, usage
from cgtool.model.options import MAX_RUNS, MAX_SECONDS

EPILOG = (
    "A budget applies to all graphs together, or to one phase: --max-nodes 400, --max-nodes "
    "backward=300. The same names work in pyproject.toml under [tool.cgtool.gate], and under "
    '[tool.cgtool.gate."model.py:build"] for one entry; options override them.\n\n'
    "Exit codes: 0 all pass, 1 one fails, 5 none fails and one is undecided, 2 usage error."
)


def with_budgets(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each budget (``--max-nodes``), received as ``limits``: the
    name of the budget to its texts."""
    options = []
    for name, (bound, metric) in NAMES.items():
        words = "At most" if bound == "max" else "At least"
        unit = f" {metric.unit}" if metric.unit in ("MiB", "ms", "us", "%") else ""
        option = typer.Option(
            f"--{name}",
            metavar="EVENT=N" if metric.after else "[PHASE=]N" if metric.phases else "N",
            help=f"{words} N{unit}: {metric.means.replace('`', '')}.",
            rich_help_panel="Budgets",
        )
        annotation = Annotated[list[str] | None, option]
        options.append(opt.keyword(name.replace("-", "_"), annotation, None))
    return opt.with_options(
        command, "limits", options, lambda values: dict(zip(NAMES, values, strict=True))
    )


@opt.captures
@with_budgets
def gate(
    *,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET",
            help=".cgt files, JSON of `cgtool check` and `cgtool verify`, or an ENTRY, for which "
            "cgtool measures what its budgets need. By default every entry that has a table in "
            "pyproject.toml.",
        ),
    ] = None,
    limits: dict[str, list[str] | None],
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Compare with this: a baseline or a .cgt file; repeatable, one per entry.",
        ),
    ] = None,
    save_baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the measured figures as a baseline.")
    ] = None,
    max_increase: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=N|N%",
            help=(
                "How much worse than the baseline a metric may be; repeatable. By default, 0 for "
                "counts and 1% for times."
            ),
        ),
    ] = None,
    max_regression: Annotated[
        str | None, typer.Option(metavar="N%", help="Short for --max-increase replay-us=N%.")
    ] = None,
    max_runs: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Maximum number of worker processes that time an ENTRY."
        ),
    ] = MAX_RUNS,
    max_seconds: Annotated[
        float,
        typer.Option(
            metavar="N", min=0.1, help="Do not start another run of an ENTRY after this long."
        ),
    ] = MAX_SECONDS,
    output: opt.Output = None,
    format_: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="FORMAT[=FILE]",
            help="table, json, csv, junit, github or benchmark-action; repeatable.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    explain: opt.Explain = False,
    worker: opt.WorkerOptions,
) -> None:
    """Compare TARGETs with budgets and baselines; exit with 1 if one fails, 5 if undecided."""
    options = from_options(limits, max_increase or (), max_regression)
    outputs = parse_formats(format_ or (), output)
    project = find_project(Path.cwd())
    targets = targets or project_targets(project)
    opened = open_targets(targets)
    specs = [target.spec for target in opened]
    if save_baseline is not None and len(opened) > 1:
        raise usage("--save-baseline is for one entry, but there are several targets")
    existing = _check_places(
        outputs, targets, [*(baseline or ()), *_project_baselines(project, specs)], save_baseline
    )
    bases = [open_baseline(path) for path in baseline or ()]
    _check_entries(bases, specs)
    warnings = [] if project is None else misplaced_tables(project, specs)
    saving = save_baseline is not None

    def limits_of(spec: str, simulated: bool) -> tuple[Budgets, Base | None]:
        budgets = _budgets(options, project, spec, simulated=simulated)
        return budgets, _baseline(bases, spec, budgets, saving=saving)

    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        measuring = Measuring(
            **vars(worker), folder=Path(folder), max_seconds=max_seconds, max_runs=max_runs
        )
        results, values = [], None
        for target in opened:
            judged, values = judge_or_report(
                target, partial(limits_of, target.spec), measuring, save=saving
            )
            notes = tuple(text for spec, text in warnings if spec == target.spec)
            results.append(structs.replace(judged, notes=judged.notes + notes))
            if judged.error is not None and judged.error.exit_code == EXIT_USAGE:
                # The command line is wrong, so there is no point in measuring the other targets.
                break
    report = gate_report(tuple(results))
    if save_baseline is not None and values is not None:
        baselines.write(save_baseline, values)
    _write(report, outputs, quiet=worker.quiet, explain=explain)
    if save_baseline is not None and values is not None and not worker.quiet:
        print_saved(save_baseline, replaced=save_baseline in existing)
        simulated = values.environment.simulated
        budgets = _budgets(options, project, opened[0].spec, simulated=simulated)
        for warning in _baseline_warnings(values, budgets):
            sys.stderr.write(f"  its times: {warning}\n")
    raise typer.Exit(exit_code(report))


def _budgets(options: Budgets, project: Project | None, spec: str, *, simulated: bool) -> Budgets:
    """Options override ``pyproject.toml``."""
    if project is None:
        return checked(options)
    return checked(options.over(project_budgets(project, spec, simulated=simulated)))


def _project_baselines(project: Project | None, specs: Sequence[str]) -> list[Path]:
    """The baselines that ``pyproject.toml`` names, for a GPU and for the simulated device. An error
    in it is reported later, when its budgets are read."""
    paths: list[Path | None] = []
    if project is not None:
        with contextlib.suppress(CgtoolError):
            for spec, simulated in itertools.product(specs, (False, True)):
                paths.append(project_budgets(project, spec, simulated=simulated).baseline)
    return [path for path in paths if path is not None]


def _check_entries(bases: Sequence[Base], specs: Sequence[str]) -> None:
    """Raises CgtoolError (exit 2) for a baseline of an entry that is not a target, and
    for two baselines of one entry."""
    for at, base in enumerate(bases):
        entry = base.values.entry.spec
        if not any(same_entry(spec, entry) for spec in specs):
            raise _of_another_entry(base, ", ".join(specs))
        for other in bases[:at]:
            if same_entry(other.values.entry.spec, entry):
                raise usage(f"{other.path} and {base.path} are both baselines of {entry}")


def _of_another_entry(base: Base, specs: str) -> CgtoolError:
    return usage(
        f"{base.path} is a baseline of {base.values.entry.spec}, not of {specs}",
        fix="name the baseline of this entry, or write one with --save-baseline FILE",
    )


def _baseline(bases: Sequence[Base], spec: str, budgets: Budgets, *, saving: bool) -> Base | None:
    """The baseline that the command line names, else that of ``pyproject.toml``, which is not used
    while it is written."""
    base = next((base for base in bases if same_entry(spec, base.values.entry.spec)), None)
    if base is None and budgets.baseline is not None and not saving:
        try:
            base = open_baseline(budgets.baseline)
        except CgtoolError as error:
            why = error.failure.why or f"pyproject.toml names it as the baseline of {spec}"
            raise CgtoolError(structs.replace(error.failure, why=why)) from None
        if not same_entry(spec, base.values.entry.spec):
            raise _of_another_entry(base, spec)
    if base is None and not saving and not budgets.limits:
        raise usage(
            f"{spec} has no budget and no baseline",
            fix="give a budget (--max-nodes 400), a baseline (--baseline FILE), or "
            "[tool.cgtool.gate] in pyproject.toml; `cgtool gate --help` lists the budgets",
        )
    return base


def _baseline_warnings(values: Baseline, budgets: Budgets) -> list[str]:
    """Why times may be impossible to compare with this baseline."""
    replay = BY_NAME["replay-us"]
    runs = runs_of(values, replay, None)
    warnings = disturbances(values.clock, "while they were measured") if runs else []
    if 0 < len(runs) < (enough := wanted(runs, budgets.allowed(replay, None).share or 0.0)):
        warnings.append(
            f"{len(runs)} of the {enough} runs needed to detect a small difference"
            + f" (--max-runs {enough})" * (enough > MAX_RUNS)
        )
    return warnings


# --- outputs

KINDS = ("table", "json", "csv", "junit", "github", "benchmark-action")
_TOGETHER = {"table", "github"}
"""Formats that can share standard output: the table, and commands that GitHub reads from logs."""

_FIGURES = {"table", "csv", "benchmark-action"}

Chosen = Sequence[tuple[str, Path | None]]


def parse_formats(texts: Sequence[str], output: Path | None) -> Chosen:
    """Kinds and files. Raises CgtoolError (exit 2) for an unknown kind, and for two that cannot
    both be on standard output."""
    chosen: list[tuple[str, Path | None]] = []
    for text in texts or ("table",):
        kind, equals, file = text.partition("=")
        if kind not in KINDS:
            raise usage(
                f"--format {text}: unknown format {kind!r}{nearest(kind, KINDS)}",
                fix=", ".join(KINDS),
            )
        if equals and not file:
            raise usage(f"--format {text}: the file name is missing")
        chosen.append((kind, Path(file) if equals else None))
    plain = [kind for kind, file in chosen if file is None]
    if output is not None:
        if len(plain) != 1:
            raise usage(
                f"-o {output}: for one format, not for {' and '.join(plain) or 'none'}",
                fix="name a file for each: --format junit=gate.xml",
            )
        return [(kind, file or output) for kind, file in chosen]
    if (len(plain) > 1 and not set(plain) <= _TOGETHER) or len(plain) != len(set(plain)):
        raise usage(
            f"--format {' and '.join(plain)}: cannot both go to standard output",
            fix="name a file for one: --format junit=gate.xml",
        )
    return chosen


def _check_places(
    chosen: Chosen, targets: Sequence[str], bases: Sequence[Path], saved: Path | None
) -> set[Path]:
    """Raises CgtoolError (exit 2) where one file would overwrite a target, a baseline or
    another result, and for a baseline that would be read as a capture. A baseline may be written
    over the one that it was compared with."""
    if saved is not None and saved.suffix == ".cgt":
        raise usage(
            f"--save-baseline {saved}: a .cgt file is a capture, but a baseline is JSON",
            fix=f"--save-baseline {saved.with_suffix('.json')}; or compare with the capture "
            "itself: --baseline FILE.cgt",
        )
    existing = check_places([("--save-baseline", saved)], *targets)
    formats = [(f"--format {kind}:", file) for kind, file in chosen]
    return existing | check_places(formats, *targets, *bases, *filter(None, [saved]))


def _write(report: GateReport, chosen: Chosen, *, quiet: bool, explain: bool) -> None:
    """Every format to its place; GitHub's summary also where ``GITHUB_STEP_SUMMARY`` says. Where
    nothing was measured, those of figures alone are left out: standard error says why.

    Exits with 2 for a place that cannot be written, when all others are."""
    from cgtool.render.gate_table import render

    is_empty = all(target.error is not None for target in report.targets)
    errors: list[CgtoolError] = []
    for kind, file in chosen:
        if (is_empty and kind in _FIGURES) or (kind == "table" and file is None and quiet):
            continue
        try:
            if kind == "table":
                show_table(render(report, explain=explain), file)
            else:
                sys.stdout.flush()
                write_bytes(_encoded(kind, report), file)
            if kind == "github":
                _write_github_summary(report)
        except CgtoolError as error:
            errors.append(error)
    if errors:
        # Not raised: the report is written, so no error takes its place.
        show_failure(errors[0].failure)
        raise typer.Exit(errors[0].failure.exit_code)


def _encoded(kind: str, report: GateReport) -> bytes:
    if kind == "json":
        from cgtool.render.json import encode

        return encode("cgtool-gate", report)
    from cgtool.render import gate_formats

    if kind == "csv":
        return gate_formats.csv(report)
    if kind == "junit":
        return gate_formats.junit(report)
    if kind == "benchmark-action":
        return gate_formats.benchmark_action(report)
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
    return gate_formats.github_commands(report, root).encode(errors="replace")


def _write_github_summary(report: GateReport) -> None:
    from cgtool.render import gate_formats

    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return
    path = Path(name)
    try:
        # The limit applies to the whole summary of a step.
        used = path.stat().st_size if path.exists() else 0
        with path.open("ab") as file:
            file.write(gate_formats.github_summary(report, gate_formats.MOST_BYTES - used).encode())
    except OSError as error:
        raise usage(
            f"GITHUB_STEP_SUMMARY names {path}, which cannot be written: {error.strerror}"
        ) from error
