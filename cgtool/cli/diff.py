"""``cgtool diff``: what changed between two captures."""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cgtool.cli import options as opt
from cgtool.model.failure import EXIT_MACHINE, CgtoolError, machine
from cgtool.model.options import CaptureOptions

if TYPE_CHECKING:
    from cgtool.model.capture import Capture


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
    format_: opt.FormatOption = opt.Format.TABLE,
    output: opt.Output = None,
    explain: opt.Explain = False,
    capture_options: CaptureOptions,
    timeout: opt.Timeout = None,
    quiet: opt.Quiet = False,
) -> None:
    """Show what changed from A to B; exit 1 when anything did, 0 when nothing did."""
    from cgtool.analysis.diff.compare import compare
    from cgtool.cli.output import check_place, show_report
    from cgtool.render.diff_table import render

    check_place(output, a, b)
    # Nothing becomes garbage before the end, and collecting takes a tenth of the time.
    gc.disable()
    try:
        captures = _open(a, b, options=capture_options, timeout=timeout, quiet=quiet)
        report = compare(*captures, names=(a, b))
        table = partial(render, report, rows=rows, explain=explain)
        show_report("cgtool-diff", report, table, format_, output, quiet=quiet)
    finally:
        gc.freeze()
        gc.enable()
    raise typer.Exit(int(report.different))


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
    first, *others = sorted(dict.fromkeys(targets), key=_is_entry)
    of_target = options if _is_entry(first) else CaptureOptions()
    opened[first], _ = open_capture(first, options=of_target, timeout=timeout, quiet=quiet)
    for target in others:
        if options.device is None:
            device = "simulated" if opened[first].environment.simulated else "cuda"
            options = structs.replace(options, device=device)
        of_target = options if _is_entry(target) else CaptureOptions()
        try:
            opened[target], _ = open_capture(
                target, options=of_target, timeout=timeout, quiet=quiet
            )
        except CgtoolError as error:
            if error.failure.exit_code != EXIT_MACHINE:
                raise
            raise machine(
                f"{target} must be captured on a GPU, like {first}",
                why=error.failure.what,
                fix="use a machine with a GPU, or compare two captures of the simulated device",
            ) from None
    return [opened[target] for target in targets]


def _is_entry(target: str) -> bool:
    return ":" in target and not target.endswith(".cgt")
