"""``cgtool check``, ``verify`` and ``explain``: what would go wrong, and what a finding means."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec import structs

from cgtool.cli import options as opt
from cgtool.cli.output import check_places, print_saved, show_report, show_table, write_bytes
from cgtool.model.failure import EXIT_INTERRUPTED, EXIT_USER_CODE, usage
from cgtool.model.finding import Report
from cgtool.model.jobs import DebugJob, StepJob, VerifyJob, check_job
from cgtool.model.options import DebugOptions, VerifyOptions

if TYPE_CHECKING:
    from cgtool.render.table import Screen


FindingsFormatOption = Annotated[
    Literal["table", "json", "csv", "sarif"],
    typer.Option("--format", help="Output format.", rich_help_panel=opt.OUTPUT),
]


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
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="What follows SCRIPT is passed to it."),
    ] = None,
    output: opt.Output = None,
    format_: FindingsFormatOption = "table",
    worker: opt.WorkerOptions,
) -> None:
    """Find what would fail or be frozen when ENTRY is captured; exit with 1 if there is any."""
    from cgtool.analysis.reports import explain_findings, is_hazard
    from cgtool.cli.workers import report_of
    from cgtool.render.report_table import render_check

    check_places([("-o", output)], entry)
    given = (*(arguments or ()), *worker.capture_options.argument)
    job = check_job(entry, structs.replace(worker.capture_options, argument=given))
    report = report_of(job, worker)
    _print(report, format_, output, render_check, quiet=worker.quiet)
    if report.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(int(any(map(is_hazard, explain_findings(report.findings)))))


@opt.captures
def verify(
    *,
    entry: opt.Entry,
    replays: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Back-to-back replays, compared with as many eager iterations."
        ),
    ] = 3,
    trials: Annotated[int, typer.Option(metavar="N", min=0, help="Sets of fresh inputs.")] = 2,
    orders: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Other orders of the nodes that the edges allow."),
    ] = 8,
    output: opt.Output = None,
    format_: FindingsFormatOption = "table",
    only: opt.OnlyTable = None,
    explain: opt.Explain = False,
    worker: opt.WorkerOptions,
) -> None:
    """Compare replays of ENTRY with eager; exit with 1 if they differ, 5 if eager is noisy."""
    from cgtool.analysis.reports import exit_code, noise_findings
    from cgtool.cli.workers import report_of
    from cgtool.render.report_table import render_verify

    check_places([("-o", output)], entry)
    job = VerifyJob(entry, worker.capture_options, VerifyOptions(replays, trials, orders))
    report = report_of(job, worker)
    report = structs.replace(report, findings=(*report.findings, *noise_findings(report)))
    quiet = worker.quiet
    _print(report, format_, output, render_verify, only=only, quiet=quiet, explain=explain)
    raise typer.Exit(exit_code(report))


@opt.captures
def debug(
    *,
    entry: opt.Entry,
    replays: Annotated[
        int, typer.Option(metavar="N", min=1, help="Replays that run node by node.")
    ] = 3,
    orders: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Run the nodes in N other orders that the edges allow, too."
        ),
    ] = 0,
    against: Annotated[
        Literal["eager"] | None,
        typer.Option(help="Compare what each op writes with an eager run from the same state."),
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="A prompt that steps, as in pdb.")
    ] = False,
    depth: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Levels of module paths in the table of values; all that fit."
        ),
    ] = None,
    values: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.cgt",
            help="Save the capture with all values, for diff, report, show and dump.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = None,
    output: opt.Output = None,
    format_: FindingsFormatOption = "table",
    only: opt.OnlyTable = None,
    explain: opt.Explain = False,
    worker: opt.WorkerOptions,
) -> None:
    """Run the graphs of ENTRY node by node: what each op writes, the first NaN, what fails."""
    from cgtool.analysis.ledger_findings import NODE_FAULTS
    from cgtool.analysis.reports import exit_code
    from cgtool.cli.workers import report_of
    from cgtool.render.report_table import render_debug

    if entry.endswith(".cgt"):
        raise usage(
            f"{entry} is a capture file, and values need the program",
            fix="give the ENTRY that was captured",
        )
    if interactive:
        from cgtool.cli.prompt import Prompt
        from cgtool.cli.workers import conversation

        if orders or against or values or output is not None or format_ != "table":
            raise usage(
                "-i takes no --orders, --against, --values, --output or --format",
                fix="give them without -i",
            )
        with conversation(StepJob(entry, worker.capture_options), worker) as (capture, ask):
            raise typer.Exit(Prompt(capture, ask).run())
    existing = check_places([("-o", output), ("--values", values)], entry)
    options = DebugOptions(replays, orders, against is not None)
    report = report_of(DebugJob(entry, worker.capture_options, options), worker, values)
    shown = {"depth": depth, "explain": explain}
    _print(report, format_, output, render_debug, only=only, quiet=worker.quiet, **shown)
    if values is not None:
        print_saved(values, replaced=values in existing)
    fails = any(finding.code == NODE_FAULTS for finding in report.findings)
    raise typer.Exit(EXIT_USER_CODE if fails else exit_code(report))


def _print(
    report: Report,
    format_: str,
    output: Path | None,
    render: Callable[..., Screen],
    **options: Any,
) -> None:
    from cgtool.analysis.reports import explain_findings

    if format_ == "sarif":
        from cgtool.render.json import sarif

        write_bytes(sarif(explain_findings(report.findings)), output)
    else:
        show_report(f"cgtool-{report.command}", report, render, format_, output, **options)


# --- explain


def explain(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="A code that check or capture printed.")
    ] = None,
    example: Annotated[
        Literal["wrong", "right"] | None, typer.Option(help="Print only this example.")
    ] = None,
    output: opt.Output = None,
    format_: opt.FormatOption = "table",
) -> None:
    """Explain a finding CODE with a wrong and a right example; without CODE, list all codes."""
    from cgtool.findings import Pages, codes, page
    from cgtool.render.json import encode
    from cgtool.render.report_table import render_page, render_pages

    if code is None:
        pages = Pages(tuple(known for name in codes() if (known := page(name))))
        show_report("cgtool-codes", pages, render_pages, format_, output)
        return
    known = page(code)
    if known is None:
        close = get_close_matches(code, codes(), n=3, cutoff=0.4)
        raise usage(
            f"no finding code `{code}`",
            fix=f"did you mean {', '.join(close)}?"
            if close
            else "`cgtool explain` lists all codes",
        )
    if example is not None:
        source = known.examples.get(example)
        if source is None:
            raise usage(f"`{code}` has no {example} example")
        write_bytes(source.encode(), output)
        return
    if format_ == "csv":
        raise usage(
            "the page of a code is not a table", fix="cgtool explain --format csv lists all codes"
        )
    if format_ == "json":
        write_bytes(encode("cgtool-code", known), output)
    else:
        show_table(render_page(known), output)
