"""``cgtool show``: the tables of whatever a saved file holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from cgtool.analysis.stepped import node_values
from cgtool.cli import options as opt
from cgtool.cli.output import check_places, show_report
from cgtool.model.capture import Capture
from cgtool.model.capture_file import read
from cgtool.model.failure import usage
from cgtool.model.files import is_file
from cgtool.render.report_table import render_values
from cgtool.render.table import Screen

_ROWS = 20
"""Of the table of a program's graphs, as in ``cgtool run``."""


def show(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a .cgt file")],
    format_: opt.FormatOption = "table",
    only: opt.OnlyTable = None,
    output: opt.Output = None,
    explain: opt.Explain = False,
) -> None:
    """Print the tables of FILE again: those of a capture, of bench and profile if it has times,
    of a program's graphs, and the values that `debug` saved."""
    check_places([("-o", output)], str(file))
    if ":" in file.name and not is_file(file):
        raise usage(
            f"{file} is an ENTRY, and `show` prints what a file holds",
            fix=f"cgtool capture {file} captures it, and prints the tables",
        )
    capture = read(file)
    parts = _parts(capture, every_row=format_ != "table")
    if values := list(node_values(capture)):
        screen_of = partial(render_values, simulated=capture.environment.simulated)
        parts.append(("values", values, screen_of))

    def render(reports: Any, *, explain: bool) -> Screen:
        whole = Screen(explain=explain)
        for number, (name, _, screen_of) in enumerate(parts):
            whole.parts += [""] if number else []
            whole.include(screen_of(reports[name], explain=explain))
        return whole

    reports = {name: report for name, report, _ in parts}
    show_report("cgtool-show", reports, render, format_, output, only=only, explain=explain)


def _parts(capture: Capture, *, every_row: bool) -> list[tuple[str, Any, Callable[..., Screen]]]:
    """What the file has: the name of a report, the report, and what draws its screen."""
    from cgtool.analysis.timing.bench import bench_report
    from cgtool.analysis.timing.profile import has_times, profile_report
    from cgtool.render import bench_table, profile_table, summary_table

    if capture.ledger is not None:
        from cgtool.analysis.ledger_report import ledger_report
        from cgtool.render import ledger_table

        report, rows = ledger_report(capture), 0 if every_row else _ROWS
        screens = [partial(ledger_table.render, rows=rows)]
        if report.gpu_ns is not None:
            screens.append(partial(ledger_table.render_times, rows=rows))
        return [("run", report, screen_of) for screen_of in screens]
    from cgtool.analysis.graph.summary import summarize

    is_profiled = has_times(capture)
    parts: list[tuple[str, Any, Callable[..., Screen]]] = [
        ("capture", summarize(capture, every_op=every_row), summary_table.render)
    ]
    if capture.bench is not None:
        times = bench_report(capture)
        if is_profiled:
            # The profile says them too.
            times = replace(times, findings=(), warnings=())
        parts.append(("bench", times, bench_table.render))
    if is_profiled:
        parts.append(("profile", profile_report(capture, whole=every_row), profile_table.render))
    return parts
