"""The screen of ``cgtool pools``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from cgtool.analysis.pools import DEFINITIONS, PoolsReport
from cgtool.render.table import add, plain, table
from cgtool.render.units import bytes_text


def render(report: PoolsReport, *, exact: bool = False) -> RenderableType:
    """Pools, groups, holders, sharing; the definitions stand under them."""

    def size(value: int | None) -> str:
        return f"{value:,}" if exact and value is not None else bytes_text(value)

    where = "simulated: a model of the allocator" if report.simulated else report.device
    pools = table(
        f"Memory pools of {report.spec} ({where})",
        ("pool", "left"),
        ("segments", "right"),
        ("reserved", "right"),
        ("live", "right"),
        ("peak", "right"),
        ("untouched", "right"),
        ("floor", "right"),
    )
    # All digits of five sizes beside each other: narrower gaps keep them whole at 80 columns.
    pools.collapse_padding = exact
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
        plain(f"the peak of {row.name} is reached at {row.peak_at}", "dim")
        for row in report.pools
        if row.peak_at
    ]
    parts += ["", _groups(report, size)]
    if report.holders:
        parts += ["", _holders(report, size)]
    if report.shared:
        parts += ["", _shared(report, size)]
    parts.append("")
    if report.driver_bytes is not None:
        parts.append(plain(f"driver     {size(report.driver_bytes)} beside the pools", ""))
    parts.append(plain(f"rounding   {size(report.rounding_bytes)} of the live bytes", ""))
    parts.append(_definitions())
    return Group(*parts)


def _definitions() -> RenderableType:
    made = Table.grid(padding=(0, 2))
    for name, text in DEFINITIONS.items():
        made.add_row(plain(name, "dim"), plain(text, "dim"))
    return made


def _groups(report: PoolsReport, size: object) -> RenderableType:
    assert callable(size)
    made = table(
        f"By {report.by}",
        "pool",
        report.by,
        ("allocations", "right"),
        ("asked for", "right"),
        ("peak", "right"),
        ("live", "right"),
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
        )
    return made


def _holders(report: PoolsReport, size: object) -> RenderableType:
    assert callable(size)
    made = table(
        "What keeps memory alive",
        "holder",
        ("bytes", "right"),
        ("graph", "left"),
        "made by",
        ("at", "left"),
    )
    for row in report.holders:
        add(made, row.holder, size(row.bytes), row.graph, row.op, row.line)
    if report.holders_left_out:
        add(made, plain(f"{report.holders_left_out} more", "dim"), "", "", "", "")
    return made


def _shared(report: PoolsReport, size: object) -> RenderableType:
    assert callable(size)
    made = table("Given again by a later graph", "pool", "first", "then", ("bytes", "right"))
    for row in report.shared:
        add(made, row.pool, row.first, row.second, size(row.bytes))
    return made
