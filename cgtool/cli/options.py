"""Options that several commands share, in PyTorch's words."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cgtool.program.grammar import GRAMMAR

INPUT_GRAMMAR = "--input SPEC is written as\n\n" + "\n\n".join(
    # \\b keeps the lines of a paragraph as they are.
    f"\b\n{paragraph}"
    for paragraph in GRAMMAR.rstrip().split("\n\n")
)
"""Below the options of a command that takes ``--input``."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


class PoolMode(StrEnum):
    SHARED = "shared"
    SEPARATE = "separate"


class ErrorMode(StrEnum):
    GLOBAL = "global"
    THREAD_LOCAL = "thread_local"
    RELAXED = "relaxed"


class StreamKind(StrEnum):
    NORMAL = "normal"
    HIGH = "high"


Entry = Annotated[
    str, typer.Argument(metavar="ENTRY", help="path/to/file.py:name or package.module:name")
]
CaptureOrEntry = Annotated[
    str, typer.Argument(metavar="CAPTURE", help="a .cgt file, or an ENTRY to capture first")
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write here instead.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="SPEC",
        help="An input of a module or a function, as described below; repeatable.",
    ),
]
WarmupIters = Annotated[
    int | None,
    typer.Option(
        min=0, help="Warm-up iterations before the capture: 3, or 11 with DistributedDataParallel."
    ),
]
AllowUnused = Annotated[
    bool,
    typer.Option("--allow-unused-input", help="Inputs that backward does not reach are allowed."),
]
Pool = Annotated[PoolMode, typer.Option(help="One memory pool for all graphs, or one each.")]
StreamOption = Annotated[StreamKind, typer.Option(help="Priority of the capturing stream.")]
CaptureErrorMode = Annotated[
    ErrorMode, typer.Option(help="As torch.cuda.graph(capture_error_mode=...).")
]
Liveness = Annotated[
    bool,
    typer.Option(
        "--check-input-liveness", help="Fail when a captured kernel points into freed memory."
    ),
]
AnnotationsOption = Annotated[
    bool,
    typer.Option(
        "--annotations/--no-annotations",
        help="Record the ranges of record_function, NVTX and mark_kernels.",
    ),
]
Times = Annotated[
    bool,
    typer.Option("--times", help="Time every node, in a few traced replays."),
]
NoBackward = Annotated[bool, typer.Option("--no-backward", help="Capture the forward alone.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the random generators.")]
DeviceOption = Annotated[
    str | None,
    # Named, because typer 0.27 would take the name from a metavar that reads the same.
    typer.Option(
        "--device", metavar="DEVICE", help="cuda, cuda:N or simulated; a GPU if there is one."
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0.1, help="End the worker process after this long."),
]
