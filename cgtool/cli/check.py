"""``cgtool check``: every hazard in one run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from cgtool.cli import options as opt
from cgtool.model.options import CaptureOptions


class FindingsFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    SARIF = "sarif"


@opt.captures
def check(
    *,
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
    capture_options: CaptureOptions,
    timeout: opt.Timeout = None,
    quiet: opt.Quiet = False,
) -> None:
    """Find what would fail, or freeze, when ENTRY is captured; exit 1 when there is any of it."""
    from cgtool.analysis.findings import is_hazard, show
    from cgtool.cli.attempts import report_of
    from cgtool.cli.output import check_place, show_table, write_bytes
    from cgtool.model.jobs import check_job

    check_place(output, entry)
    job = check_job(entry, capture_options, tuple(arguments or ()))
    report = report_of(job, timeout=timeout, quiet=quiet)
    found = show(report.findings)
    if format_ is FindingsFormat.JSON:
        from cgtool.render.json import encode

        write_bytes(encode("cgtool-check", report), output)
    elif format_ is FindingsFormat.SARIF:
        from cgtool.render import sarif

        write_bytes(sarif.encode(found), output)
    elif output is not None or not quiet:
        from cgtool.render.findings import render_report

        show_table(render_report(report), output)
    if any(is_hazard(one) for one in found):
        raise typer.Exit(1)
