"""``cgtool verify``: does replay equal eager?"""

from __future__ import annotations

from typing import Annotated

import typer

from cgtool.cli import options as opt
from cgtool.cli.check import FindingsFormat
from cgtool.model.options import CaptureOptions, VerifyOptions


@opt.captures
def verify(
    *,
    entry: opt.Entry,
    replays: Annotated[
        int, typer.Option(min=1, help="Replays in a row, against as many eager iterations.")
    ] = 3,
    trials: Annotated[int, typer.Option(min=0, help="Sets of fresh inputs.")] = 2,
    output: opt.Output = None,
    format_: Annotated[
        FindingsFormat, typer.Option("--format", help="How to print.")
    ] = FindingsFormat.TABLE,
    capture_options: CaptureOptions,
    timeout: opt.Timeout = None,
    explain: opt.Explain = False,
    quiet: opt.Quiet = False,
) -> None:
    """Hold replays of ENTRY against eager; exit 1 when they differ, 5 when eager is too noisy."""
    from msgspec import structs

    from cgtool.analysis.findings import show
    from cgtool.analysis.verify import exit_code, noise
    from cgtool.cli.attempts import report_of
    from cgtool.cli.output import check_place, show_table, write_bytes
    from cgtool.model.jobs import VerifyJob

    check_place(output, entry)
    job = VerifyJob(entry, capture_options, VerifyOptions(replays, trials))
    report = report_of(job, timeout=timeout, quiet=quiet)
    report = structs.replace(report, findings=(*report.findings, *noise(report)))
    if format_ is FindingsFormat.JSON:
        from cgtool.render.json import encode

        write_bytes(encode("cgtool-verify", report), output)
    elif format_ is FindingsFormat.SARIF:
        from cgtool.render import sarif

        write_bytes(sarif.encode(show(report.findings)), output)
    elif output is not None or not quiet:
        from cgtool.render.verify_table import render

        show_table(render(report, explain=explain), output)
    code = exit_code(report)
    if code:
        raise typer.Exit(code)
