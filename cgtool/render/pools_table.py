"""The screen of ``cgtool pools``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cgtool.analysis.pools import GroupRow, HolderRow, PoolRow, PoolsReport, SharedRow
from cgtool.analysis.units import bytes_text, exact_bytes_text
from cgtool.render.table import WARNING, Column, Screen, Table

Size = Callable[[int], str]


def render(
    report: PoolsReport, *, notes: Sequence[str] = (), exact: bool = False, explain: bool = False
) -> Screen:
    """Pools, groups, live blocks, reuse, ``notes``; ``exact``: in bytes; ``explain``: also what the
    headings mean."""
    size: Size = exact_bytes_text if exact else bytes_text
    where = "simulated: a model of the allocator" if report.simulated else report.device
    title = f"Memory pools of {report.spec} ({where}){', in bytes' if exact else ''}"
    screen = Screen(simulated=report.simulated, explain=explain)
    # The title says "simulated" already.
    screen.add(Table(title, _pool_columns(size), report.pools, name="pools"))
    if report.pools:
        screen.labeled(_notes(report, size))
    else:
        screen.line(title, "bold")
        screen.line("none: no graph of the capture holds memory")
    title = f"Allocations by {report.by}"
    screen.table(title, _group_columns(report, size), report.groups, name="allocations")
    rest = {"block": f"{report.holders_left_out} more", "size": report.bytes_left_out}
    screen.table(
        "Live blocks at the end of the capture",
        _holder_columns(report, size),
        report.holders,
        [rest] if report.holders_left_out else [],
        name="live-blocks",
    )
    title = "Memory reused between graphs"
    screen.table(title, _shared_columns(size), report.shared, name="reused")
    screen.labeled((("note", note) for note in notes), WARNING)
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
        Column("pool", "name", wrap="never"),
        Column(
            "reserved",
            "reserved_bytes",
            size,
            explanation="bytes of the segments that CUDA gave to the pool",
        ),
        Column(
            "live",
            "live_bytes",
            size,
            explanation="bytes in blocks that are still held at the end of the capture",
        ),
        Column(
            "peak",
            "peak_bytes",
            size,
            explanation="most bytes in blocks at once during the capture",
        ),
        Column(
            "minimum",
            "floor_bytes",
            size,
            explanation="most requested bytes at once: with these lifetimes no pool can be smaller",
        ),
        Column(
            "never used",
            "untouched_bytes",
            size,
            explanation="bytes of the segments that no allocation covered",
        ),
        Column("segments", priority=1),
    ]


def _group_columns(report: PoolsReport, size: Size) -> Sequence[Column[GroupRow]]:
    return [
        Column("pool", shown=len(report.pools) > 1),
        Column(report.by, "group"),
        Column("peak", "peak_bytes", size),
        Column("live", "live_bytes", size),
        Column("allocations"),
        Column(
            "requested",
            "requested_bytes",
            size,
            priority=1,
            explanation="sum over all allocations: reused memory counts each time",
        ),
        Column(
            "time",
            "time_ns",
            optional=True,
            priority=2,
            explanation="GPU time of its nodes in one replay of each graph",
        ),
    ]


def _holder_columns(report: PoolsReport, size: Size) -> Sequence[Column[HolderRow]]:
    return [
        Column("block", "holder"),
        Column("size", "bytes", size),
        Column("graph", wrap="never"),
        Column("op"),
        Column("line"),
        Column("pool", shown=len(report.pools) > 1, priority=1),
        Column("module", priority=2, optional=True),
    ]


def _shared_columns(size: Size) -> Sequence[Column[SharedRow]]:
    return [
        Column("pool"),
        Column("freed by", "first"),
        Column("reused by", "second"),
        Column("size", "bytes", size),
    ]
