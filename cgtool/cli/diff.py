"""``cgtool diff`` and ``cgtool report``: what changed between two captures, and one or both as an
HTML file."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cgtool.cli import options as opt
from cgtool.cli.output import check_places, print_saved, show_report, write_bytes
from cgtool.model.capture import Capture
from cgtool.model.collector import CollectorPaused
from cgtool.model.failure import EXIT_MACHINE, CgtoolError, machine


@opt.captures
def diff(
    *,
    a: Annotated[
        str, typer.Argument(metavar="A", help="a .cgt file, or an ENTRY to capture first")
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", help="the .cgt file or ENTRY to compare it with")
    ],
    rows: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Rows of a table, most nodes first; 0 shows all."),
    ] = 20,
    format_: opt.FormatOption = "table",
    only: opt.OnlyTable = None,
    output: opt.Output = None,
    explain: opt.Explain = False,
    worker: opt.WorkerOptions,
) -> None:
    """Show what changed from A to B; exit with 1 if anything did, else 0."""
    from cgtool.analysis.diff.compare import compare
    from cgtool.render.diff_table import render

    quiet = worker.quiet
    check_places([("-o", output)], a, b)
    # Collecting would take a tenth of the time.
    with CollectorPaused(freeze=True):
        captures = _open(a, b, options=worker)
        report = compare(*captures, names=(a, b))
        show_report(
            "cgtool-diff", report, render, format_, output,
            only=only, quiet=quiet, rows=rows, explain=explain,
        )  # fmt: skip
    raise typer.Exit(int(report.different))


# --- report


@opt.captures
def report(
    *,
    capture: opt.CaptureOrEntry,
    other: Annotated[
        str | None,
        typer.Argument(metavar="B", help="a second capture, to compare with the first"),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the page to FILE.",
            rich_help_panel=opt.OUTPUT,
        ),
    ] = Path("report.html"),
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    worker: opt.WorkerOptions,
) -> None:
    """Write CAPTURE, or what changed from it to B, as one HTML page that opens offline in any
    browser."""
    import webbrowser

    from cgtool.html.report import check_page, html

    targets = [capture] if other is None else [capture, other]
    existing = check_places([("-o", output)], *targets)
    # Collecting would take a tenth of the time.
    with CollectorPaused(freeze=True):
        captures = _open(*targets, options=worker)
        check_page(output, captures)
        write_bytes(html(list(zip(targets, captures, strict=True))), output)
    if not worker.quiet:
        print_saved(output, replaced=output in existing)
    if open_ and not webbrowser.open(output.absolute().as_uri()):
        sys.stderr.write(f"no browser was found to open {output}\n")


# --- captures


def _open(*targets: str, options: opt.WorkerOptions) -> list[Capture]:
    """Both captures. Files come first: their errors show at once, and an ENTRY is captured on the
    device of the file."""
    from msgspec import structs

    from cgtool.cli.workers import is_saved, open_capture, refuse_for_file

    if all(map(is_saved, targets)):
        refuse_for_file(" and ".join(targets), options.capture_options)
    for_file = opt.WorkerOptions()
    opened: dict[str, Capture] = {}
    first, *others = sorted(dict.fromkeys(targets), key=lambda target: not is_saved(target))
    opened[first], _ = open_capture(first, for_file if is_saved(first) else options)
    for target in others:
        if options.capture_options.device is None:
            device = "simulated" if opened[first].environment.simulated else "cuda"
            capture_options = structs.replace(options.capture_options, device=device)
            options = replace(options, capture_options=capture_options)
        try:
            opened[target], _ = open_capture(target, for_file if is_saved(target) else options)
        except CgtoolError as error:
            if error.failure.exit_code != EXIT_MACHINE:
                raise
            raise machine(
                f"{target} must be captured on a GPU, like {first}",
                why=error.failure.message,
                fix="use a machine with a GPU, or compare two captures of the simulated device",
            ) from None
    return [opened[target] for target in targets]
