"""``cgtool annotate``: the lines of a capture in another profiler's trace."""

from __future__ import annotations

import gzip
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from cgtool.cli import options as opt
from cgtool.cli.output import check_places, print_saved, show_report
from cgtool.model.collector import CollectorPaused
from cgtool.model.failure import CgtoolError, usage
from cgtool.model.files import atomic

_PACKING = 1
"""Level of gzip: makes the output ten times smaller, in a second per 100 MB."""

_KINDS = (
    ("a Chrome trace", (".sqlite", ".nsys-rep")),
    ("an SQLite database", (".json", ".gz", ".nsys-rep")),
)
"""Without and with SQLite: what a trace is, and suffixes of what it is not."""

EPILOG = (
    "Exit codes: 0 every kernel of a graph was matched, 1 some were not, 2 usage error or bad file."
)


def annotate(
    *,
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="a trace of torch.profiler (.json, .json.gz), or Nsight Systems' SQLite export",
        ),
    ],
    with_: Annotated[
        Path,
        typer.Option(
            "--with",
            metavar="FILE",
            help="The graphs: a .cgt file of `cgtool capture` or `cgtool run`.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the annotated trace to FILE.",
            rich_help_panel=opt.OUTPUT,
        ),
    ],
    format_: opt.FormatOption = "table",
    only: opt.OnlyTable = None,
    explain: opt.Explain = False,
    quiet: opt.Quiet = False,
) -> None:
    """Give the kernels of graph replays in a trace their op, module and line."""
    from cgtool.analysis.trace_match import match_launches
    from cgtool.analysis.trace_report import annotate_report
    from cgtool.model import capture_file
    from cgtool.model.gpu_trace import SQLITE_MAGIC, first_bytes, read_chrome
    from cgtool.model.nsight import NsightTrace
    from cgtool.render.annotate_table import render
    from cgtool.render.annotated_trace import annotated, nodes

    existing = check_places([("-o", output)], trace, with_)
    capture = capture_file.read(with_)
    if capture.environment.simulated:
        raise usage(
            f"{with_} was captured on the simulated device, whose nodes are ops, not kernels",
            fix="capture on the GPU that was traced",
        )
    if not capture.graphs:
        raise usage(
            f"{with_} has no graphs",
            why="the program captured none while cgtool recorded it",
            fix=f"`cgtool run {shlex.quote(str(with_))}` shows what it did",
        )
    # Collecting would take half of the time.
    with CollectorPaused(freeze=True):
        read = NsightTrace(trace) if first_bytes(trace) == SQLITE_MAGIC else read_chrome(trace)
        kind, others = _KINDS[isinstance(read, NsightTrace)]
        if output.suffix in others:
            raise usage(f"-o {output}: {trace} is {kind}, so the annotated trace is one too")
        if not read.records:
            if isinstance(read, NsightTrace):
                raise _no_graphs(
                    trace, read.outside, "nsys profile --trace=cuda", read.whole_graphs
                )
            raise _no_graphs(trace, read.outside, "activities=[..., ProfilerActivity.CUDA]")
        launches = match_launches(capture, read.records)
        report = annotate_report(
            capture, launches, trace=str(trace), name=str(with_), outside=read.outside,
            unusable=0 if isinstance(read, NsightTrace) else read.unusable,
        )  # fmt: skip
        if isinstance(read, NsightTrace):
            with atomic(output) as temporary:
                read.write(temporary, nodes(read, launches, capture))
        else:
            _write(output, annotated(read, launches, capture))
    show_report(
        "cgtool-annotate", report, render, format_, None,
        only=only, quiet=quiet, rows=20, explain=explain,
    )  # fmt: skip
    print_saved(output, replaced=output in existing)
    raise typer.Exit(int(not report.complete))


def _no_graphs(trace: Path, outside: int, option: str, whole_graphs: int = 0) -> CgtoolError:
    """``option``: of the profiler, to record the work of the GPU."""
    if whole_graphs:
        return usage(
            f"{trace}: {whole_graphs:,} launches of graphs, without their kernels",
            why="by default, Nsight Systems records each graph launch as a whole",
            fix="nsys profile --cuda-graph-trace=node ...",
        )
    return usage(
        f"{trace}: no kernel ran inside a CUDA graph",
        why=f"its {outside:,} kernels, memcpys and memsets were launched one by one"
        if outside
        else f"it has no GPU work at all: {option} records it",
        fix="trace the steps that replay graphs: warm-up and capture do not",
    )


def _write(output: Path, parts: Iterable[bytes]) -> None:
    with atomic(output) as temporary:
        if output.suffix == ".gz":
            with gzip.open(temporary, "wb", compresslevel=_PACKING) as file:
                file.writelines(parts)
        else:
            with temporary.open("wb") as plain:
                plain.writelines(parts)
