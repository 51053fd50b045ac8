"""The screen of ``cgtool pools``."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType

from cgtool.analysis.memory.pools import DEFINITIONS, PoolsReport
from cgtool.analysis.units import bytes_text, time_text
from cgtool.render.table import Words, add, explained, plain, table

Size = Callable[[int], str]


def render(report: PoolsReport, *, exact: bool = False) -> RenderableType:
    """Pools, groups, holders, sharing; the definitions stand under them."""

    def size(value: int) -> str:
        return f"{value:,}" if exact else bytes_text(value)

    where = "simulated: a model of the allocator" if report.simulated else report.device
    title = f"Memory pools of {report.spec} ({where}){', in bytes' if exact else ''}"
    if not report.pools:
        return Group(plain(title, "bold"), "none: the capture has no graph that holds memory")
    pools = table(
        title,
        ("pool", "left"),
        ("segments", "right"),
        ("reserved", "right"),
        ("live", "right"),
        ("peak", "right"),
        ("untouched", "right"),
        ("floor", "right"),
    )
    for row in report.pools:
        add(
            pools,
            row.name,
            str(row.segments),
            size(row.reserved),
            size(row.live),
            size(row.peak),
            size(row.untouched),
            size(row.floor),
        )
    parts: list[RenderableType] = [pools]
    parts += [
        plain(f"{row.name} reaches its peak in {row.peak_at}", "dim")
        for row in report.pools
        if row.peak_at
    ]
    if report.groups:
        parts += ["", _groups(report, size)]
    if report.holders:
        parts += ["", _holders(report, size)]
    if report.shared:
        parts += ["", _shared(report, size)]
    beside = [("rounding", f"{size(report.rounding_bytes)} of the live bytes were not asked for")]
    if report.driver_bytes is not None:
        driver = f"{size(report.driver_bytes)} beside the pools, for the executable graphs"
        beside.append(("driver", driver))
    if any(row.time_ns is not None for row in report.groups):
        beside.append(("time", "of the nodes of that row, in one replay of each graph"))
    parts += ["", explained([*DEFINITIONS.items(), *beside])]
    return Group(*parts)


def _groups(report: PoolsReport, size: Size) -> RenderableType:
    timed = any(row.time_ns is not None for row in report.groups)
    made = table(
        f"Allocations by {report.by}",
        "pool",
        report.by,
        ("allocations", "right"),
        ("asked for", "right"),
        ("peak", "right"),
        ("live", "right"),
        *([("time", "right")] if timed else []),
        simulated=report.simulated,
    )
    for row in report.groups:
        add(
            made,
            row.pool,
            row.group,
            f"{row.allocations:,}",
            size(row.requested),
            size(row.peak),
            size(row.live),
            *([time_text(row.time_ns)] if timed else []),
        )
    return made


def _holders(report: PoolsReport, size: Size) -> RenderableType:
    several = len(report.pools) > 1
    made = table(
        "What keeps memory alive",
        *([("pool", "left")] if several else []),
        "holder",
        ("size", "right"),
        ("graph", "left"),
        "made by",
        simulated=report.simulated,
    )
    for row in report.holders:
        pool = [row.pool] if several else []
        add(made, *pool, row.holder, size(row.bytes), row.graph, f"{row.op} {row.line}".strip())
    if report.holders_left_out:
        rest = Words(f"{report.holders_left_out} more", "dim")
        add(made, *([""] if several else []), rest, size(report.bytes_left_out), "", "")
    return made


def _shared(report: PoolsReport, size: Size) -> RenderableType:
    made = table(
        "Memory that one graph gave back and a later one was given again",
        "pool",
        "given back by",
        "given to",
        ("size", "right"),
        simulated=report.simulated,
    )
    for row in report.shared:
        add(made, row.pool, row.first, row.second, size(row.bytes))
    return made
