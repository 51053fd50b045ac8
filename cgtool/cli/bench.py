"""``cgtool bench``: eager against replay."""

from __future__ import annotations

import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cgtool.cli import options as opt
from cgtool.model.options import BenchOptions, CaptureOptions

EPILOG = opt.INPUT_GRAMMAR


class Phase(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"
    BOTH = "both"
    STEP = "step"


def bench(
    entry: opt.Entry,
    phase: Annotated[Phase | None, typer.Option(help="Time only this; all by default.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 30,
    max_seconds: Annotated[
        float, typer.Option(min=0.1, help="Stop adding rounds after this long.")
    ] = 60.0,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the capture with its raw samples (.cgt)."),
    ] = None,
    output: opt.Output = None,
    format_: opt.FormatOption = opt.Format.TABLE,
    input_: opt.Inputs = None,
    device: opt.DeviceOption = None,
    warmup_iters: opt.WarmupIters = None,
    allow_unused_input: opt.AllowUnused = False,
    pool: opt.Pool = opt.PoolMode.SHARED,
    no_backward: opt.NoBackward = False,
    seed: opt.Seed = None,
    timeout: opt.Timeout = None,
    quiet: opt.Quiet = False,
) -> None:
    """Time ENTRY eager and replayed, interleaved, with a 95 % interval on the speed-up."""
    from cgtool.analysis.bench import report
    from cgtool.cli.output import attempt, show_table, write_bytes
    from cgtool.render.bench_table import render
    from cgtool.render.json import encode

    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        captured = attempt(
            entry,
            save or Path(folder) / "bench.cgt",
            inputs=tuple(input_ or ()),
            options=CaptureOptions(
                device=device,
                warmup_iters=warmup_iters,
                allow_unused_input=allow_unused_input,
                pool=pool.value,
                backward=not no_backward,
                seed=seed,
            ),
            bench=BenchOptions(
                phase=phase.value if phase else None, rounds=rounds, max_seconds=max_seconds
            ),
            timeout=timeout,
            quiet=quiet,
        )
    found = report(captured)
    if format_ is opt.Format.JSON:
        write_bytes(encode("cgtool-bench", found), output)
    else:
        show_table(render(found), output)
