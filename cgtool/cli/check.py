"""``cgtool check``: every hazard in one run."""

from __future__ import annotations

import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cgtool.cli import options as opt
from cgtool.model.options import CaptureOptions, CheckOptions, Request


class FindingsFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    SARIF = "sarif"


def check(
    entry: Annotated[
        str,
        typer.Argument(
            metavar="ENTRY|SCRIPT",
            help="path/to/file.py:name or package.module:name; or a script that captures graphs "
            "itself",
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script.")
    ] = None,
    output: opt.Output = None,
    format_: Annotated[
        FindingsFormat, typer.Option("--format", help="How to print.")
    ] = FindingsFormat.TABLE,
    input_: opt.Inputs = None,
    device: opt.DeviceOption = None,
    warmup_iters: opt.WarmupIters = None,
    allow_unused_input: opt.AllowUnused = False,
    capture_error_mode: opt.CaptureErrorMode = opt.ErrorMode.GLOBAL,
    no_backward: opt.NoBackward = False,
    seed: opt.Seed = None,
    timeout: opt.Timeout = None,
    quiet: opt.Quiet = False,
) -> None:
    """Find what would fail, or freeze, when ENTRY is captured; exit 1 when there is any of it."""
    from msgspec import structs

    from cgtool.analysis import graph_findings
    from cgtool.analysis.findings import is_hazard, show
    from cgtool.cli.output import check_place, show_table, work, write_bytes
    from cgtool.model.file import read
    from cgtool.model.finding import read_report

    check_place(output, entry)
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        saved = Path(folder) / "report.json"
        work(
            Request(
                entry,
                str(saved),
                tuple(input_ or ()),
                CaptureOptions(
                    device=device,
                    warmup_iters=warmup_iters,
                    allow_unused_input=allow_unused_input,
                    capture_error_mode=capture_error_mode.value,
                    backward=not no_backward,
                    seed=seed,
                ),
                check=CheckOptions(tuple(arguments or ())),
            ),
            timeout=timeout,
            quiet=quiet,
        )
        report = read_report(saved)
        if (captured := saved.with_suffix(".cgt")).exists():
            more = graph_findings.look(read(captured))
            report = structs.replace(report, findings=(*report.findings, *more))
    found = show(report.findings)
    if format_ is FindingsFormat.JSON:
        from cgtool.render.json import encode

        write_bytes(encode("cgtool-check", report), output)
    elif format_ is FindingsFormat.SARIF:
        from cgtool.render import sarif

        write_bytes(sarif.encode(found), output)
    elif not quiet:
        from cgtool.render.findings_table import render_report

        show_table(render_report(report), output)
    if any(is_hazard(one) for one in found):
        raise typer.Exit(1)
