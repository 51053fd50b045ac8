"""``cgtool gate``: budgets and baselines, one verdict, for CI."""

from __future__ import annotations

import contextlib
import inspect
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cgtool.analysis.gate.budgets import NAMES
from cgtool.cli import options as opt
from cgtool.model.failure import EXIT_USAGE, CgtoolError, usage
from cgtool.model.options import MAX_RUNS, MAX_SECONDS, CaptureOptions

if TYPE_CHECKING:
    from cgtool.analysis.gate.budgets import Budgets, Project
    from cgtool.cli.gate_inputs import Base
    from cgtool.model.baseline import Baseline

EPILOG = (
    "A budget holds for the whole, or for one phase: --max-nodes 400, --max-nodes backward=300. "
    "The same names work in pyproject.toml under [tool.cgtool.gate], and under "
    '[tool.cgtool.gate."model.py:build"] for one entry; options override them.\n\n'
    "Exit codes: 0 all pass, 1 one fails, 5 none fails and one is undecided, 2 wrong use."
)


def with_budgets(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each budget (``--max-nodes``), received as ``limits``: the
    name of the budget to its texts."""
    options = [
        inspect.Parameter(
            _parameter(name),
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[list[str] | None, _option(name)],
        )
        for name in NAMES
    ]
    return opt.with_options(
        command,
        "limits",
        options,
        lambda values: {name: values[_parameter(name)] for name in NAMES},
    )


def _parameter(name: str) -> str:
    return name.replace("-", "_")


def _option(name: str) -> Any:
    bound, metric = NAMES[name]
    words = "At most" if bound == "max" else "At least"
    unit = f" {metric.unit}" if metric.unit in ("MiB", "ms", "us") else ""
    means = metric.means.replace("`", "")
    number = "[PHASE=]N" if metric.phases else "N"
    return typer.Option(f"--{name}", metavar=number, help=f"{words} N{unit}: {means}.")


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
        Path | None, typer.Option(metavar="FILE", help="Save the measured figures as a baseline.")
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
    explain: opt.Explain = False,
    capture_options: CaptureOptions,
    timeout: opt.Timeout = None,
    quiet: opt.Quiet = False,
) -> None:
    """Compare TARGETs with budgets and baselines; exit 1 when one fails, 5 when undecided."""
    from msgspec import structs

    from cgtool.analysis.gate.budgets import from_options
    from cgtool.analysis.gate.judge import exit_code, gate_report
    from cgtool.cli import gate_formats, gate_inputs, gate_measure
    from cgtool.cli.attempts import Measuring
    from cgtool.model import baseline as baselines

    options = from_options(limits, max_increase or (), max_regression)
    formats = gate_formats.parse(format_ or (), output)
    opened = gate_inputs.open_targets(targets)
    specs = [target.spec for target in opened]
    if save_baseline is not None and len(opened) > 1:
        raise usage("--save-baseline is for one entry, and there are several targets")
    project = gate_inputs.find_project(Path.cwd())
    gate_formats.check_places(
        formats, targets, [*(baseline or ()), *_project_baselines(project, specs)], save_baseline
    )
    bases = _match([gate_inputs.open_baseline(path) for path in baseline or ()], specs)
    warnings = [] if project is None else gate_inputs.misplaced_tables(project, specs)
    saving = save_baseline is not None
    limits_of = gate_measure.Limits(
        lambda spec, simulated: _budgets(options, project, spec, simulated=simulated),
        lambda spec, budgets: _baseline(bases, spec, budgets, saving=saving),
    )
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        measuring = Measuring(capture_options, Path(folder), timeout, quiet, max_seconds, max_runs)
        results, values = [], None
        for target in opened:
            judged, values = gate_measure.judge_or_report(target, limits_of, measuring, save=saving)
            notes = tuple(text for spec, text in warnings if spec == target.spec)
            results.append(structs.replace(judged, notes=judged.notes + notes))
            if judged.error is not None and judged.error.exit_code == EXIT_USAGE:
                # The command line is wrong: measuring the other targets helps nobody.
                break
    report = gate_report(tuple(results))
    if save_baseline is not None and values is not None:
        baselines.write(save_baseline, values)
    gate_formats.write(report, formats, quiet=quiet, explain=explain)
    if save_baseline is not None and values is not None and not quiet:
        sys.stderr.write(f"saved {save_baseline}\n")
        simulated = values.environment.simulated
        budgets = _budgets(options, project, opened[0].spec, simulated=simulated)
        for warning in _baseline_warnings(values, budgets):
            sys.stderr.write(f"  its times: {warning}\n")
    code = exit_code(report)
    if code:
        raise typer.Exit(code)


def _budgets(options: Budgets, project: Project | None, spec: str, *, simulated: bool) -> Budgets:
    """Options override ``pyproject.toml``."""
    from cgtool.analysis.gate.budgets import checked, project_budgets

    if project is None:
        return checked(options)
    return checked(options.over(project_budgets(project, spec, simulated=simulated)))


def _project_baselines(project: Project | None, specs: Sequence[str]) -> list[Path]:
    """The baselines that ``pyproject.toml`` names, for a GPU and for the simulated device. An error
    in it is reported later, when its budgets are read."""
    from cgtool.analysis.gate.budgets import project_budgets

    if project is None:
        return []
    with contextlib.suppress(CgtoolError):
        paths = [
            project_budgets(project, spec, simulated=simulated).baseline
            for spec in specs
            for simulated in (False, True)
        ]
        return [path for path in paths if path is not None]
    return []


def _match(bases: Sequence[Base], specs: Sequence[str]) -> Sequence[Base]:
    """The same. Raises CgtoolError (exit 2) for a baseline of an entry that is not a target, and
    for two baselines of one entry."""
    from cgtool.analysis.gate.budgets import same_entry

    for at, base in enumerate(bases):
        entry = base.values.entry.spec
        if not any(same_entry(spec, entry) for spec in specs):
            raise _of_another_entry(base, ", ".join(specs))
        for other in bases[:at]:
            if same_entry(other.values.entry.spec, entry):
                raise usage(f"{other.path} and {base.path} are both baselines of {entry}")
    return bases


def _of_another_entry(base: Base, specs: str) -> Exception:
    return usage(
        f"{base.path} is a baseline of {base.values.entry.spec}, not of {specs}",
        fix="name the baseline of this entry, or write one with --save-baseline FILE",
    )


def _baseline(bases: Sequence[Base], spec: str, budgets: Budgets, *, saving: bool) -> Base | None:
    """The baseline that the command line names, else that of ``pyproject.toml``, which is not used
    while it is written."""
    from msgspec import structs

    from cgtool.analysis.gate.budgets import same_entry
    from cgtool.cli.gate_inputs import open_baseline

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
    from cgtool.analysis.gate.metrics import BY_NAME, runs_of
    from cgtool.analysis.timing.regression import wanted
    from cgtool.analysis.timing.runs import disturbances

    replay = BY_NAME["replay-us"]
    runs = runs_of(values, replay, None)
    warnings = disturbances(values.clock, "while they were measured") if runs else []
    if 0 < len(runs) < (enough := wanted(runs, budgets.allowed(replay, None).share or 0.0)):
        warnings.append(
            f"{len(runs)} of the {enough} runs that a small difference takes"
            + f" (--max-runs {enough})" * (enough > MAX_RUNS)
        )
    return warnings
