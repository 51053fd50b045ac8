"""``cgtool capture`` and ``cgtool profile``: an ENTRY captured, or captured and timed, shown and
saved."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated, Literal

import typer

from cgtool.cli import options as opt
from cgtool.cli.output import check_places, print_saved, show_report, write_bytes
from cgtool.model.capture import Capture
from cgtool.model.failure import CgtoolError, machine, usage
from cgtool.model.jobs import CaptureJob, ProfileJob
from cgtool.model.options import ProfileOptions


def _default_file(spec: str, suffix: str = "") -> Path:
    """``model.py:build`` is saved as ``model-build.cgt`` in the current folder."""
    target, _, name = spec.rpartition(":")
    stem = Path(target).stem if target.endswith(".py") else target.rpartition(".")[2]
    return Path(f"{stem or 'capture'}-{name or 'entry'}{suffix}.cgt".replace("/", "-"))


@opt.captures
def capture(
    *,
    entry: opt.Entry,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Save the capture in FILE.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    format_: opt.FormatOption = "table",
    only: opt.OnlyTable = None,
    depth: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Module levels in 'Nodes by module'; by default as many as fit.",
        ),
    ] = None,
    explain: opt.Explain = False,
    worker: opt.WorkerOptions,
) -> None:
    """Capture ENTRY into graphs, show them, and save them as one .cgt file."""
    from cgtool.cli.workers import capture_of

    target = output or _default_file(entry)
    existing = check_places([("-o", target)], entry)
    captured = capture_of(CaptureJob(entry, worker.capture_options), target, worker)
    if format_ != "table" or not worker.quiet:
        from cgtool.analysis.graph.summary import summarize
        from cgtool.render.summary_table import render

        summary = summarize(captured, depth, every_op=format_ == "csv")
        show_report(
            "cgtool-summary", summary, render, format_, None,
            only=only, quiet=worker.quiet, explain=explain,
        )  # fmt: skip
    print_saved(target, replaced=target in existing)


# --- profile


@opt.captures
def profile(
    *,
    target: Annotated[
        str,
        typer.Argument(
            metavar="ENTRY|CAPTURE", help="an ENTRY to measure, or a .cgt file with times"
        ),
    ],
    by: Annotated[
        Literal["line", "module", "op", "kernel", "node"] | None,
        typer.Option(help="Show one table by this instead of the overview."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Rows of each table: 10, or 20 with --by; in JSON, all."
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Module levels to keep; by default, as many as fit in 16 rows."
        ),
    ] = None,
    format_: Annotated[
        Literal["table", "json", "csv", "perfetto"],
        typer.Option(
            "--format", help="perfetto: a trace for ui.perfetto.dev.", rich_help_panel=opt.OUTPUT
        ),
    ] = "table",
    only: opt.OnlyTable = None,
    output: opt.Output = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Save the capture with its times to FILE; MODEL-NAME-profile.cgt by default.",
        ),
    ] = None,
    replays: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=3,
            help="Replays of each graph to trace; as many again are timed without a profiler.",
        ),
    ] = 20,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Interleaved rounds of eager and replay.")
    ] = 12,
    max_seconds: Annotated[
        float,
        typer.Option(metavar="N", min=0.1, help="Do not start another round after this long."),
    ] = 60.0,
    explain: opt.Explain = False,
    worker: opt.WorkerOptions,
) -> None:
    """Time every node of a replay on the GPU: by line, module, op, kernel; gaps, peak rates."""
    from cgtool.analysis.timing.profile import has_times, profile_report
    from cgtool.cli.workers import capture_of, is_saved, refuse_for_file
    from cgtool.model.capture_file import read
    from cgtool.render.profile_table import render

    profiling = ProfileOptions(replays, rounds, max_seconds)
    existing = check_places([("-o", output)], target)
    saved: Path | None = None
    if is_saved(target):
        refuse_for_file(target, worker.capture_options, profiling, save=save)
        measured = read(Path(target))
        if measured.ledger is not None and format_ != "perfetto":
            if by is not None or depth is not None:
                raise _without(target, measured, "no node times")
            _show_program(measured, format_, output, only=only, rows=top or 10, explain=explain)
            return
        if not has_times(measured):
            raise _without(target, measured, "no node times")
    else:
        saved = save or _default_file(target, "-profile")
        existing = check_places([("--save", saved), ("-o", output)], target)
        job = ProfileJob(target, worker.capture_options, profiling)
        measured = capture_of(job, saved, worker)
    # The capture lives until the end, so the garbage collector can skip it.
    gc.freeze()
    if format_ == "perfetto":
        from cgtool.render.perfetto import render as render_trace

        if not any(node.start_ns is not None for graph in measured.graphs for node in graph.nodes):
            raise _without(target, measured, "no start times of nodes, which a trace needs")
        write_bytes(render_trace(measured), output)
    elif (whole := format_ != "table") or saved is None or not worker.quiet or output is not None:
        report = profile_report(measured, by=by, top=top, depth=depth, whole=whole)
        show_report(
            "cgtool-profile", report, render, format_, output,
            only=only, overview=by is None, explain=explain,
        )  # fmt: skip
    if saved is not None:
        print_saved(saved, replaced=saved in existing)


def _show_program(
    capture: Capture,
    format_: str,
    output: Path | None,
    *,
    only: str | None,
    rows: int,
    explain: bool,
) -> None:
    """Times of a program's graphs."""
    from cgtool.analysis.ledger_report import ledger_report
    from cgtool.render.ledger_table import render_times

    report = ledger_report(capture)
    show_report(
        "cgtool-ledger", report, render_times, format_, output,
        only=only, rows=rows, explain=explain,
    )  # fmt: skip


def _without(target: str, capture: Capture, absent: str) -> CgtoolError:
    """The error for a file without times; its fix says how to measure them."""
    if capture.ledger is not None:
        return usage(
            f"{target} has {absent}",
            why="`cgtool run` does not time the nodes of a program's graphs",
            fix="cgtool profile path/to/file.py:name, for the captured code",
        )
    simulated = capture.environment.simulated
    return machine(
        f"{target} has {absent}",
        why="it was made on the simulated device, which has no GPU times"
        if simulated
        else "they are measured on a GPU, by `cgtool profile` or with --times",
        fix=f"on a machine with an NVIDIA GPU: cgtool profile {capture.entry.spec}",
    )
