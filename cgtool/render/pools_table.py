"""The screen of ``cgtool pools``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cgtool.analysis.pools import GroupRow, HolderRow, PoolRow, PoolsReport, SharedRow
from cgtool.analysis.units import bytes_text, time_text
from cgtool.render.table import WARNING, Column, Screen, Table

Size = Callable[[int], str]


def render(
    report: PoolsReport, *, notes: Sequence[str] = (), exact: bool = False, explain: bool = False
) -> Screen:
    """Pools, groups, live blocks, reuse, ``notes``; ``exact``: in bytes; ``explain``: also what the
    headings mean."""

    def size(value: int) -> str:
        return f"{value:,}" if exact else bytes_text(value)

    where = "simulated: a model of the allocator" if report.simulated else report.device
    title = f"Memory pools of {report.spec} ({where}){', in bytes' if exact else ''}"
    screen = Screen(simulated=report.simulated, explain=explain)
    if not report.pools:
        screen.line(title, "bold")
        screen.line("none: no graph of the capture holds memory")
        screen.labelled((("note", note) for note in notes), WARNING)
        return screen
    # The title says "simulated" already.
    screen.parts.append(Table(title, _pool_columns(size), report.pools))
    screen.labelled(_notes(report, size))
    screen.table(f"Allocations by {report.by}", _group_columns(report, size), report.groups)
    rest = {"block": f"{report.holders_left_out} more", "size": report.bytes_left_out}
    screen.table(
        "Live blocks at the end of the capture",
        _holder_columns(report, size),
        report.holders,
        [rest] if report.holders_left_out else [],
    )
    title = "Memory reused between graphs"
    screen.table(title, _shared_columns(size), report.shared)
    screen.labelled((("note", note) for note in notes), WARNING)
    screen.legend()
    return screen


def _notes(report: PoolsReport, size: Size) -> list[tuple[str, str]]:
    lines = [(f"peak of {row.name}", f"at {row.peak_at}") for row in report.pools if row.peak_at]
    lines.append(("rounding", f"{size(report.rounding_bytes)} of the live bytes"))
    if report.driver_bytes is not None:
        driver = f"{size(report.driver_bytes)} outside the pools, for the executable graphs"
        lines.append(("driver", driver))
    return lines


def _pool_columns(size: Size) -> Sequence[Column[PoolRow]]:
    return [
        Column("pool", lambda row: row.name, wrap="never"),
        Column(
            "reserved",
            lambda row: row.reserved,
            size,
            explanation="bytes of the segments that CUDA gave to the pool",
        ),
        Column(
            "live",
            lambda row: row.live,
            size,
            explanation="bytes in blocks that are still held at the end of the capture",
        ),
        Column(
            "peak",
            lambda row: row.peak,
            size,
            explanation="most bytes in blocks at once during the capture",
        ),
        Column(
            "minimum",
            lambda row: row.floor,
            size,
            explanation="most requested bytes at once: with these lifetimes no pool is smaller",
        ),
        Column(
            "never used",
            lambda row: row.untouched,
            size,
            explanation="bytes of the segments that no allocation covered",
        ),
        Column("segments", lambda row: row.segments, priority=1),
    ]


def _group_columns(report: PoolsReport, size: Size) -> Sequence[Column[GroupRow]]:
    return [
        Column("pool", lambda row: row.pool, shown=len(report.pools) > 1),
        Column(report.by, lambda row: row.group),
        Column("peak", lambda row: row.peak, size),
        Column("live", lambda row: row.live, size),
        Column("allocations", lambda row: row.allocations),
        Column(
            "requested",
            lambda row: row.requested,
            size,
            priority=1,
            explanation="sum over all allocations: reused memory counts each time",
        ),
        Column(
            "time",
            lambda row: row.time_ns,
            time_text,
            optional=True,
            priority=2,
            explanation="GPU time of its nodes in one replay of each graph",
        ),
    ]


def _holder_columns(report: PoolsReport, size: Size) -> Sequence[Column[HolderRow]]:
    return [
        Column("block", lambda row: row.holder),
        Column("size", lambda row: row.bytes, size),
        Column("graph", lambda row: row.graph, wrap="never"),
        Column("op", lambda row: row.op),
        Column("line", lambda row: row.line),
        Column("pool", lambda row: row.pool, shown=len(report.pools) > 1, priority=1),
        Column("module", lambda row: row.module, priority=2, optional=True),
    ]


def _shared_columns(size: Size) -> Sequence[Column[SharedRow]]:
    return [
        Column("pool", lambda row: row.pool),
        Column("freed by", lambda row: row.first),
        Column("reused by", lambda row: row.second),
        Column("size", lambda row: row.bytes, size),
    ]
