"""``cgtool report``: a capture as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cgtool.cli import options as opt
from cgtool.model.collector import CollectorPaused


@opt.captures
def report(
    *,
    capture: opt.CaptureOrEntry,
    other: Annotated[
        str | None,
        typer.Argument(metavar="B", help="a second one, to compare CAPTURE with"),
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
    import sys
    import webbrowser

    from cgtool.cli.diff import open_both
    from cgtool.cli.output import check_places, print_saved, write_bytes
    from cgtool.html.report import html
    from cgtool.html.sources import check_page

    targets = [capture] if other is None else [capture, other]
    check_places([("-o", output)], *targets)
    # Collecting would take a tenth of the time.
    with CollectorPaused(freeze=True):
        captures = open_both(*targets, options=worker)
        check_page(output, captures)
        write_bytes(html(list(zip(targets, captures, strict=True))), output)
    if not worker.quiet:
        print_saved(output)
    if open_ and not webbrowser.open(output.absolute().as_uri()):
        sys.stderr.write(f"no browser was found to open {output}\n")
