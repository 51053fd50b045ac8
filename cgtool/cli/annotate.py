"""``cgtool annotate``: the lines of a capture in another profiler's trace."""

from __future__ import annotations

import gzip
import pickle
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from cgtool.cli import options as opt
from cgtool.cli.output import check_places, print_saved, show_report, write_bytes
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
    annotations: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Write a pickle for `cuda_graph_annotations=` of PyTorch's export_chrome_trace, "
                "for other traces of the same process."
            ),
        ),
    ] = None,
    torch_annotations: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Add what PyTorch recorded in the traced process: a pickle of its annotations, or "
            "the file of `dump_kernel_py_stacks`.",
        ),
    ] = None,
    format_: opt.FormatOption = "table",
    only: opt.OnlyTable = None,
    explain: opt.Explain = False,
    quiet: opt.Quiet = False,
) -> None:
    """Give the kernels of graph replays in a trace their op, module and line."""
    from cgtool.analysis.trace_match import match_launches
    from cgtool.analysis.trace_report import annotate_report
    from cgtool.model import capture_file
    from cgtool.model import torch_annotations as torch_file
    from cgtool.model.gpu_trace import SQLITE_MAGIC, first_bytes, read_chrome
    from cgtool.model.nsight import NsightTrace
    from cgtool.render.annotate_table import render
    from cgtool.render.annotated_trace import annotated, for_pytorch, nodes

    recorded = [] if torch_annotations is None else [torch_annotations]
    written = [("-o", output), ("--annotations", annotations)]
    existing = check_places(written, trace, with_, *recorded)
    capture = capture_file.read(with_)
    given = {} if torch_annotations is None else torch_file.read(torch_annotations)
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
        if torch_annotations is not None and isinstance(read, NsightTrace):
            raise usage(f"--torch-annotations is for Chrome traces, not for {trace}")
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
        if torch_annotations is not None and not any(record.graph for record in read.records):
            raise _no_ids("--torch-annotations", trace)
        processes = {record.process for record in read.records}
        named = {"--torch-annotations": torch_annotations, "--annotations": annotations}
        for_one = [option for option, file in named.items() if file is not None]
        if (len(processes) > 1 or None in processes) and for_one:
            raise usage(
                f"{for_one[0]} is for one process; {trace} has graphs of several",
                why="each process numbers the nodes of its graphs itself",
                fix="annotate the trace of each process separately",
            )
        if annotations is not None:
            write_bytes(_pickled(trace, for_pytorch(launches, capture)), annotations)
        if isinstance(read, NsightTrace):
            with atomic(output) as temporary:
                read.write(temporary, nodes(read, launches, capture))
        else:
            _write(output, annotated(read, launches, capture, given))
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


def _no_ids(option: str, trace: Path) -> CgtoolError:
    return usage(
        f"{option}: {trace} does not name the nodes of graphs",
        fix="trace with PyTorch 2.12 or later, or with Nsight Systems",
    )


def _pickled(trace: Path, annotations: dict[int, list[dict[str, str]]]) -> bytes:
    if not annotations:
        raise _no_ids("--annotations", trace)
    return pickle.dumps(annotations)


def _write(output: Path, parts: Iterable[bytes]) -> None:
    with atomic(output) as temporary:
        if output.suffix == ".gz":
            with gzip.open(temporary, "wb", compresslevel=_PACKING) as file:
                file.writelines(parts)
        else:
            with temporary.open("wb") as plain:
                plain.writelines(parts)
