"""``cgtool bench``: eager against replay, and replays against a baseline or another entry."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer
from msgspec.structs import replace

from cgtool.analysis.gate.budgets import increase_of, same_entry
from cgtool.analysis.gate.measured import measure
from cgtool.analysis.gate.verdict import BaselineComparison
from cgtool.analysis.timing.bench import (
    BenchReport,
    against_baseline,
    against_entry,
    bench_report,
    exit_code,
    verdicts,
)
from cgtool.analysis.timing.runs import merge
from cgtool.cli import options as opt
from cgtool.cli.gate_targets import Base, open_baseline
from cgtool.cli.output import check_places, print_saved, show_report
from cgtool.cli.workers import Look, Measuring, Runs, until_decided
from cgtool.model.capture_file import raw_texts
from cgtool.model.failure import usage
from cgtool.model.options import MAX_RUNS, MAX_SECONDS, BenchOptions

EPILOG = "Exit codes with --baseline and --against: 0 not slower, 1 slower, 5 cannot tell."


@opt.captures
def bench(
    *,
    entry: opt.Entry,
    phase: Annotated[
        Literal["forward", "backward", "both", "step"] | None,
        typer.Option(
            help="Time only this phase; all by default, the whole iteration with --against."
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Interleaved rounds of a run.")
    ] = 30,
    runs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Worker processes that measure: 1, or at least 3 with --baseline.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare replays with this: a baseline or a .cgt file."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="ENTRY2", help="Compare replays with those of ENTRY2."),
    ] = None,
    max_regression: Annotated[
        str | None,
        typer.Option(metavar="N%", help="How much slower is allowed: 1%, or 0.2% with --against."),
    ] = None,
    max_runs: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Maximum number of worker processes with --baseline."
        ),
    ] = MAX_RUNS,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.1,
            help="Do not start another round, pair or run after this long: 60, or 300 for all "
            "runs.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the capture with its raw samples (.cgt)."),
    ] = None,
    output: opt.Output = None,
    format_: opt.FormatOption = "table",
    only: opt.OnlyTable = None,
    explain: opt.Explain = False,
    worker: opt.WorkerOptions,
) -> None:
    """Time ENTRY, eager and replay in turn, with a 95% confidence interval for the speedup.

    With --baseline or --against, report whether its replays are slower: yes, no, or cannot tell."""
    from cgtool.analysis.timing.regression import PAIR_TOLERANCE, TOLERANCE, pair_precision
    from cgtool.model.capture_file import write
    from cgtool.model.files import atomic
    from cgtool.render.bench_table import render

    if baseline is not None and against is not None:
        raise usage("--baseline and --against cannot be used together", fix="give only one of them")
    if max_regression is not None and baseline is None and against is None:
        raise usage(
            "--max-regression needs something to compare with",
            fix="add --baseline FILE or --against ENTRY2",
        )
    if runs is not None and against is not None:
        raise usage(
            "--runs counts worker processes, but --against measures in one",
            fix="leave --runs out",
        )
    tolerance = TOLERANCE if against is None else PAIR_TOLERANCE
    if max_regression is not None:
        tolerance = increase_of("--max-regression", "replay-us", max_regression).share or 0.0
    sources = [entry] if against is None else [entry, against]
    check_places([("--save", save)], *sources)
    existing = check_places([("--save", save), ("-o", output)], *sources, *filter(None, [baseline]))
    base = None if baseline is None else _open_baseline(baseline, entry)
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder, contextlib.ExitStack() as stack:
        # Opened first: a path that cannot be written is reported before anything is measured.
        kept = None if save is None else stack.enter_context(atomic(save))
        measuring = Measuring(
            **vars(worker),
            folder=Path(folder),
            timing=BenchOptions(
                phase=phase,
                rounds=rounds,
                max_seconds=max_seconds or BenchOptions().max_seconds,
                precision=pair_precision(tolerance),
            ),
            against=against,
        )
        measured = Runs(
            lambda: measuring.bench(entry), max_seconds or MAX_SECONDS, ahead=measuring.ahead
        )
        if base is not None:
            result = _with_baseline(measured, base, tolerance, first=runs, most=max_runs)
        elif against is not None:
            result = _with_entry(measured, against, tolerance)
        else:
            measured.run_once()
            in_time = measured.up_to(runs or 1)
            notes = measure(measured.captures).notes
            notes = notes if in_time else (*notes, measured.out_of_time)
            result = replace(bench_report(merge(measured.captures)), notes=notes)
        if kept is not None:
            first = measured.captures[0]
            write(kept, merge(measured.captures), raw_texts(measuring.file(0), first))
    show_report("cgtool-bench", result, render, format_, output, only=only, explain=explain)
    if save is not None:
        print_saved(save, replaced=save in existing)
    raise typer.Exit(exit_code(result.verdicts))


def _open_baseline(path: Path, entry: str) -> Base:
    """The baseline of an entry. Raises CgtoolError (exit 2) for a baseline of another entry, or
    without times."""
    base = open_baseline(path)
    spec = base.values.entry.spec
    if not same_entry(spec, entry):
        raise usage(
            f"{path} is a baseline of {spec}, not of {entry}",
            fix="--against ENTRY2 compares two entries",
        )
    if not any(samples.name == "replay" for samples in base.values.samples):
        raise usage(
            f"{path} has no times",
            fix="save a capture with times: `cgtool bench ENTRY --runs 10 --save FILE`",
        )
    return base


def _with_baseline(
    runs: Runs, base: Base, tolerance: float, *, first: int | None, most: int
) -> BenchReport:
    """Runs until every phase is decided, or no more runs are allowed."""

    def look(looks: int) -> Look[tuple[dict[str, BaselineComparison], tuple[str, ...]]]:
        measured = measure(runs.captures)
        now = measured.values
        comparisons = against_baseline(base.values, now, tolerance, looks)
        if not comparisons:
            there, here = (
                ", ".join(dict.fromkeys(samples.phase for samples in side.samples))
                for side in (base.values, now)
            )
            raise usage(f"{base.path} has times of {there}, but {here} was measured")
        return Look(
            (comparisons, measured.notes),
            any(comparison.open for comparison in comparisons.values()),
            any(comparison.compared for comparison in comparisons.values()),
        )

    runs.run_once()
    (comparisons, notes), note = until_decided(runs, look, first=first, most=most)
    return replace(
        bench_report(merge(runs.captures)),
        against=str(base.path),
        verdicts=verdicts(comparisons),
        notes=notes if note is None else (*notes, note),
    )


def _with_entry(runs: Runs, against: str, tolerance: float) -> BenchReport:
    """Pairs of captures in one worker process, to the precision that the tolerance needs."""
    capture = runs.run_once()
    return replace(
        bench_report(capture),
        against=against,
        verdicts=against_entry(capture, tolerance),
        notes=tuple(
            caveat.text
            for caveat in capture.caveats
            if caveat.code in ("same-weights", "time-limit")
        ),
    )
