"""``cgtool diff``: what changed between two captures."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cgtool.cli import options as opt
from cgtool.model.failure import EXIT_MACHINE, CgtoolError, machine
from cgtool.model.options import CaptureOptions

if TYPE_CHECKING:
    from cgtool.analysis.diff.compare import Diff
    from cgtool.model.capture import Capture


@opt.captures
def diff(
    *,
    a: Annotated[
        str, typer.Argument(metavar="A", help="a .cgt file, or an ENTRY to capture first")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="what to compare with it, likewise")],
    rows: Annotated[
        int, typer.Option(min=0, metavar="N", help="Rows of a table, most nodes first; 0: all.")
    ] = 20,
    format_: opt.FormatOption = opt.Format.TABLE,
    output: opt.Output = None,
    explain: opt.Explain = False,
    capture_options: CaptureOptions,
    timeout: opt.Timeout = None,
    quiet: opt.Quiet = False,
) -> None:
    """Show what changed from A to B; exit 1 when anything did, 0 when nothing did."""
    from cgtool.analysis.diff.compare import compare
    from cgtool.cli.output import check_place

    check_place(output, a, b)
    # Nothing is garbage before the end, and collecting takes a tenth of the time.
    gc.disable()
    try:
        captures = _open(a, b, options=capture_options, timeout=timeout, quiet=quiet)
        report = compare(*captures, names=(a, b))
        _show(report, format_, rows, output, explain=explain, quiet=quiet)
    finally:
        gc.freeze()
        gc.enable()
    if report.different:
        raise typer.Exit(1)


def _show(
    report: Diff,
    format_: opt.Format,
    rows: int,
    output: Path | None,
    *,
    explain: bool,
    quiet: bool,
) -> None:
    from cgtool.cli.output import show_table, write_bytes

    if format_ is opt.Format.JSON:
        from cgtool.render.json import encode

        write_bytes(encode("cgtool-diff", report), output)
    elif output is not None or not quiet:
        from cgtool.render.diff_table import render

        show_table(render(report, rows=rows, explain=explain), output)


def _open(
    *targets: str, options: CaptureOptions, timeout: float | None, quiet: bool
) -> list[Capture]:
    """Both captures. Files come first: their errors show at once, and an ENTRY is captured on the
    device of the file."""
    from msgspec import structs

    from cgtool.cli.attempts import open_capture, refuse_for_file

    if not any(map(_is_entry, targets)):
        refuse_for_file(" and ".join(targets), options)
    opened: dict[str, Capture] = {}
    for target in sorted(dict.fromkeys(targets), key=_is_entry):
        known = next(iter(opened.items()), None)
        if known is None:
            of_target = options if _is_entry(target) else None
            opened[target], _ = open_capture(
                target, options=of_target, timeout=timeout, quiet=quiet
            )
            continue
        if options.device is None:
            device = "simulated" if known[1].environment.simulated else "cuda"
            options = structs.replace(options, device=device)
        try:
            opened[target], _ = open_capture(
                target,
                options=options if _is_entry(target) else None,
                timeout=timeout,
                quiet=quiet,
            )
        except CgtoolError as error:
            if error.failure.exit_code != EXIT_MACHINE:
                raise
            raise machine(
                f"{target} has to be captured on a GPU, as {known[0]} was",
                why=error.failure.what,
                fix="use a machine with a GPU, or compare two captures of the simulated device",
            ) from None
    return [opened[target] for target in targets]


def _is_entry(target: str) -> bool:
    return ":" in target and not target.endswith(".cgt")
