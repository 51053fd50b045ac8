"""``cgtool bench``: eager against replay, and replays against a baseline or another entry."""

from __future__ import annotations

import contextlib
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cgtool.cli import options as opt
from cgtool.model.failure import usage
from cgtool.model.options import MAX_RUNS, MAX_SECONDS, BenchOptions, CaptureOptions

EPILOG = "Exit codes with --baseline and --against: 0 not slower, 1 slower, 5 cannot tell."


class Phase(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"
    BOTH = "both"
    STEP = "step"


@opt.captures
def bench(
    *,
    entry: opt.Entry,
    phase: Annotated[
        Phase | None,
        typer.Option(
            help="Time only this; all by default, and the whole iteration with --against."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds of a run.")] = 30,
    runs: Annotated[
        int | None,
        typer.Option(min=1, help="Worker processes that measure, 1; at least, 3, with --baseline."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Hold replays against this: a baseline or a .cgt file."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="ENTRY2", help="Hold replays against those of ENTRY2."),
    ] = None,
    max_regression: Annotated[
        str | None,
        typer.Option(metavar="N%", help="How much slower is allowed: 1%, or 0.2% with --against."),
    ] = None,
    max_runs: Annotated[
        int, typer.Option(min=1, help="Worker processes with --baseline, at most.")
    ] = MAX_RUNS,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Begin no further round, pair or run after this long: 60, or 300 for all runs.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the capture with its raw samples (.cgt)."),
    ] = None,
    output: opt.Output = None,
    format_: opt.FormatOption = opt.Format.TABLE,
    capture_options: CaptureOptions,
    timeout: opt.Timeout = None,
    explain: opt.Explain = False,
    quiet: opt.Quiet = False,
) -> None:
    """Time ENTRY eager and replayed, interleaved, with a 95 % interval on the speed-up.

    With --baseline or --against, say whether its replays are slower, not slower, or that it cannot
    be told."""
    from cgtool.analysis.gate.budgets import increase_of
    from cgtool.analysis.timing.bench import exit_code
    from cgtool.analysis.timing.regression import PAIR_TOLERANCE, TOLERANCE, pair_precision
    from cgtool.analysis.timing.runs import merge
    from cgtool.cli.attempts import Measuring
    from cgtool.cli.bench_runs import (
        held_to_baseline,
        held_to_entry,
        measured,
        open_base,
        raw_texts,
    )
    from cgtool.cli.output import check_apart, check_place, show_table, write_bytes
    from cgtool.cli.sequential_runs import Runs
    from cgtool.model.capture_file import write
    from cgtool.model.files import atomic
    from cgtool.render.bench_table import render
    from cgtool.render.json import encode

    if baseline is not None and against is not None:
        raise usage("--baseline and --against are two comparisons: give one of them")
    if max_regression is not None and baseline is None and against is None:
        raise usage("--max-regression needs --baseline FILE or --against ENTRY2 to be held against")
    if runs is not None and against is not None:
        raise usage("--runs counts worker processes, and --against measures in one")
    tolerance = TOLERANCE if against is None else PAIR_TOLERANCE
    if max_regression is not None:
        tolerance = increase_of("--max-regression", "replay-us", max_regression).share or 0.0
    sources = [entry] if against is None else [entry, against]
    check_place(save, *sources, option="--save")
    check_apart(output, save)
    check_place(output, *sources, *([] if baseline is None else [str(baseline)]))
    base = None if baseline is None else open_base(baseline, entry)
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder, contextlib.ExitStack() as stack:
        # Opened first: a place that cannot be written is told before anything is measured.
        kept = None if save is None else stack.enter_context(atomic(save))
        measuring = Measuring(
            capture_options,
            Path(folder),
            timeout,
            quiet,
            timing=BenchOptions(
                phase=phase.value if phase else None,
                rounds=rounds,
                max_seconds=max_seconds or BenchOptions().max_seconds,
                precision=pair_precision(tolerance),
            ),
            against=against,
        )
        made = Runs(
            lambda: measuring.bench(entry), max_seconds or MAX_SECONDS, ahead=measuring.ahead
        )
        if base is not None:
            found = held_to_baseline(made, base, tolerance, first=runs, most=max_runs)
        elif against is not None:
            found = held_to_entry(made, against, tolerance)
        else:
            found = measured(made, runs or 1)
        if kept is not None:
            write(kept, merge(made.captures), raw_texts(measuring.file(0), made.captures[0]))
    if format_ is opt.Format.JSON:
        write_bytes(encode("cgtool-bench", found), output)
    else:
        show_table(render(found, explain=explain), output)
    code = exit_code(found.verdicts)
    if code:
        raise typer.Exit(code)
