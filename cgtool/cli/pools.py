"""``cgtool pools``: memory, explained."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from cgtool.cli import options as opt
from cgtool.model.failure import usage
from cgtool.model.options import CaptureOptions


class By(StrEnum):
    GRAPH = "graph"
    STREAM = "stream"
    MODULE = "module"
    LINE = "line"


@opt.captures
def pools(
    *,
    capture: opt.CaptureOrEntry,
    pool: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this pool; repeatable. All by default."),
    ] = None,
    by: Annotated[By, typer.Option(help="Split each pool by this.")] = By.GRAPH,
    depth: Annotated[
        int, typer.Option(min=1, help="Names of a module path that --by module keeps.")
    ] = 2,
    holders: Annotated[int, typer.Option(min=0, help="Live blocks to list, largest first.")] = 12,
    exact: Annotated[bool, typer.Option("--exact", help="Bytes instead of KiB and MiB.")] = False,
    format_: opt.FormatOption = opt.Format.TABLE,
    output: opt.Output = None,
    capture_options: CaptureOptions,
    timeout: opt.Timeout = None,
    explain: opt.Explain = False,
    quiet: opt.Quiet = False,
) -> None:
    """Explain the memory pools of CAPTURE: reserved, live, peak, who holds what, what is shared."""
    from cgtool.analysis.memory.pools import pools_report
    from cgtool.cli.attempts import open_capture
    from cgtool.cli.output import check_place, show_table, write_bytes

    check_place(output, capture)
    opened, _ = open_capture(capture, options=capture_options, quiet=quiet, timeout=timeout)
    names = list(dict.fromkeys(one.name for one in opened.memory.pools))
    for name in pool or ():
        if name not in names:
            raise usage(f"--pool {name}: the capture has {', '.join(names) or 'no pool'}")
    report = pools_report(opened, only=pool or (), by=by.value, depth=depth, holders=holders)
    if format_ is opt.Format.JSON:
        from cgtool.render.json import encode

        write_bytes(encode("cgtool-pools", report), output)
    else:
        from cgtool.render.pools_table import render

        show_table(render(report, exact=exact, explain=explain), output)
