"""One table of ``cgtool profile``: time by line, module, op, kernel or node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

from cgtool.analysis.timing.roofline import COMPUTE, LATENCY, MEMORY
from cgtool.analysis.timing.time_tables import KERNEL, LINE, MODULE, NODE, OP, TimeRow, TimeTable
from cgtool.analysis.units import rate_text, time_text
from cgtool.model.capture import Frame
from cgtool.render.source import source_line
from cgtool.render.table import GOOD, WARNING, Cut, Words, add, plain, table

_BOUNDS = {MEMORY: GOOD, COMPUTE: GOOD, LATENCY: WARNING}
_WIDE = 110
"""Cells from which on every column has room."""

Column = tuple[str | tuple[str, str], Callable[[TimeRow], Any]]
"""Its heading, as ``table`` takes it, and its cell."""


class ByWidth:
    """The first of two renderables where there is room for it."""

    def __init__(self, wide: RenderableType, narrow: RenderableType) -> None:
        self.wide, self.narrow = wide, narrow

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.wide if options.max_width >= _WIDE else self.narrow


def render(found: TimeTable, total_ns: float, idle_ns: float) -> RenderableType:
    """The rows, what was left out, and the time in which no node ran."""
    return ByWidth(
        *(_table(list(_columns(found, wide)), found, total_ns, idle_ns) for wide in (True, False))
    )


def _table(
    columns: list[Column], found: TimeTable, total_ns: float, idle_ns: float
) -> RenderableType:
    depth = "" if found.depth is None else f", to depth {found.depth}"
    made = table(f"Time by {found.by}{depth}", *(heading for heading, _ in columns))
    for row in found.rows:
        add(made, *(cell(row) for _, cell in columns))
    rest: list[tuple[str, float]] = []
    if found.left_out:
        rest.append((f"{found.left_out:,} more", found.left_out_ns))
    if idle_ns:
        rest.append(("(no node runs)", idle_ns))
    for name, time in rest:
        cells = {found.by: plain(name, "dim"), "time": time_text(time)}
        cells["share"] = f"{time / (total_ns or 1):.1%}"
        names = (heading if isinstance(heading, str) else heading[0] for heading, _ in columns)
        add(made, *(cells.get(one, "") for one in names))
    return made


def _columns(found: TimeTable, wide: bool) -> Iterator[Column]:
    rated = found.by in (OP, KERNEL, NODE)
    known = any(row.bound is not None for row in found.rows)
    yield found.by, lambda row: Cut(row.name) if found.by == KERNEL else Words(row.name)
    if found.by != NODE:
        yield ("nodes", "right"), lambda row: f"{row.nodes:,}"
    yield ("time", "right"), lambda row: time_text(row.total_ns)
    yield ("share", "right"), lambda row: f"{row.share:.1%}"
    if found.has_backward and not rated:
        yield ("backward", "right"), _backward
    if rated and wide and any(row.filled is not None for row in found.rows):
        yield ("fills", "right"), _filled
    if rated and known:
        if wide:
            yield ("reaches", "right"), _rate
        yield ("of roof", "right"), _of_roof
    if known:
        yield ("bound", "left"), _bound
    if found.by == LINE:
        yield _source(found)
    elif found.by == MODULE:
        yield "type", lambda row: Cut(row.module)
    elif found.by == OP:
        yield ("most often at", "left"), lambda row: row.line
    elif found.by == NODE or wide or not known:
        yield "op", lambda row: Cut(f"{row.op} {row.line}".strip())
    if found.by == NODE and wide:
        yield "kernel", lambda row: Cut(row.kernel)


def _source(found: TimeTable) -> Column:
    """The lines themselves, where their files lie here; else what is done in them."""
    sources = {
        row.name: source_line(Frame(row.file, row.number, row.function), of_capture=True)
        for row in found.rows
    }
    if any(sources.values()):
        return "source", lambda row: Cut(sources[row.name] or f"in {row.function}")
    return "most of it", lambda row: Cut(f"{row.op or row.kernel} in {row.function}")


def _backward(row: TimeRow) -> str:
    return f"{row.backward_ns / row.total_ns:.0%}" if row.total_ns else "—"


def _filled(row: TimeRow) -> str:
    return "—" if row.filled is None else f"{row.filled:.0%}"


def _rate(row: TimeRow) -> str:
    """Towards the nearer roof."""
    if row.nearer == COMPUTE:
        return rate_text(row.flops_per_s, "FLOP/s")
    return rate_text(row.bytes_per_s, "B/s")


def _of_roof(row: TimeRow) -> str:
    if row.of_roof is None:
        return "—"
    return ">100%" if row.of_roof > 1.005 else f"{row.of_roof:.0%}"


def _bound(row: TimeRow) -> Any:
    return plain(row.bound or "—", _BOUNDS.get(row.bound or "", "dim"))
