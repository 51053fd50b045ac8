"""Explain the memory pools of a capture, to the byte.

Definitions, shown under the table:
reserved    what the allocator took from CUDA for the pool: the sum of its segments
live        bytes in blocks that are still held when the capture ends
peak        most bytes that were held at once while capturing
untouched   bytes of the segments that no allocation ever covered
floor       most requested bytes held at once: no pool for these lifetimes can be smaller
asked for   sum over all allocations; memory counts as often as it was given out
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from cgtool.analysis.graph.places import Places, file_line, module_at_depth, part_of
from cgtool.model.capture import Allocation, Capture, Pool

DEFINITIONS = {
    "reserved": "taken from CUDA for the pool: the sum of its segments",
    "live": "in blocks that something still holds when the capture ends",
    "peak": "most bytes in blocks held at once while capturing",
    "untouched": "bytes of the segments that no allocation ever covered",
    "floor": "most requested bytes held at once; no pool for these lifetimes can be smaller",
    "asked for": "sum over all allocations; memory counts as often as it was given out",
}


class PoolRow(msgspec.Struct, frozen=True):
    """One pool, in bytes."""

    name: str
    segments: int
    reserved: int
    live: int
    peak: int
    untouched: int
    floor: int
    allocations: int
    graphs: tuple[str, ...]
    peak_at: str
    """Where the peak was reached: graph, op and line."""


class GroupRow(msgspec.Struct, frozen=True):
    """Allocations of one graph, stream, module or line."""

    pool: str
    group: str
    allocations: int
    requested: int
    """Sum over all allocations: one address counts as often as it was given out."""
    live: int
    peak: int
    """Most bytes of this group held at once."""
    time_ns: int | None
    """Device time of its nodes in one replay; None where none was measured."""


class HolderRow(msgspec.Struct, frozen=True):
    """A block that is live at the end, and what holds it."""

    pool: str
    holder: str
    bytes: int
    graph: str
    op: str
    line: str
    module: str


class SharedRow(msgspec.Struct, frozen=True):
    """Bytes of a pool that were given out in two graphs, one after the other."""

    pool: str
    first: str
    second: str
    bytes: int


class PoolsReport(msgspec.Struct, frozen=True):
    spec: str
    device: str
    simulated: bool
    pools: tuple[PoolRow, ...]
    groups: tuple[GroupRow, ...]
    by: str
    holders: tuple[HolderRow, ...]
    holders_left_out: int
    bytes_left_out: int
    """Of those holders."""
    shared: tuple[SharedRow, ...]
    driver_bytes: int | None
    """Device memory that the driver took for the executable graphs, outside the pools."""
    rounding_bytes: int
    """Live bytes beyond what was asked for."""


class _Timed(msgspec.Struct, frozen=True):
    """A node's time, and what it is grouped by, as of an allocation."""

    graph: int
    origin: int | None
    stream: int | None
    duration_ns: int


def _timed(capture: Capture, pool: int) -> Iterator[_Timed]:
    """The timed nodes of the graphs that use a pool."""
    for index, graph in enumerate(capture.graphs):
        for node in graph.nodes if graph.pool == pool else ():
            if node.duration_ns is not None:
                yield _Timed(index, node.origin, node.stream, node.duration_ns)


def _peak(allocations: Iterable[Allocation], size: Callable[[Allocation], int]) -> tuple[int, int]:
    """(most bytes at once, event at which that was reached)."""
    changes: list[tuple[int, int]] = []
    for one in allocations:
        changes.append((one.allocated_at, size(one)))
        if one.freed_at is not None:
            changes.append((one.freed_at, -size(one)))
    changes.sort()
    now = best = at = 0
    for event, change in changes:
        now += change
        if now > best:
            best, at = now, event
    return best, at


def _covered(pool: Pool, allocations: Iterable[Allocation]) -> int:
    """Bytes of the pool's segments that some allocation or live block covered."""
    ranges = [(one.address, one.address + one.bytes) for one in allocations]
    ranges += [
        (block.address, block.address + block.bytes)
        for segment in pool.segments
        for block in segment.blocks
        if block.state != "inactive"
    ]
    ranges.sort()
    segments = sorted((one.address, one.address + one.bytes) for one in pool.segments)
    total, position = 0, 0
    for low, high in segments:
        reach = low
        while position < len(ranges) and ranges[position][0] < high:
            start, end = max(ranges[position][0], reach), min(ranges[position][1], high)
            if end > start:
                total += end - start
                reach = end
            position += 1
    return total


def live_bytes(pool: Pool) -> int:
    """Bytes in blocks that are not free."""
    return sum(
        block.bytes
        for segment in pool.segments
        for block in segment.blocks
        if block.state != "inactive"
    )


def reserved_bytes(pool: Pool) -> int:
    return sum(segment.bytes for segment in pool.segments)


def pools_report(
    capture: Capture,
    *,
    only: Sequence[str] = (),
    by: str = "graph",
    depth: int = 2,
    holders: int = 12,
) -> PoolsReport:
    """Rows for every pool, or those named by ``only``, split by ``graph``, ``stream``,
    ``module`` or ``line``."""
    memory = capture.memory
    places = Places(capture)
    by_pool: dict[int, list[Allocation]] = defaultdict(list)
    for one in memory.allocations:
        by_pool[one.pool].append(one)

    def group_of(one: Allocation | _Timed) -> str:
        if by == "stream":
            return (
                capture.streams[one.stream].name if one.stream is not None else "(another stream)"
            )
        if by == "module":
            module = module_at_depth(places.of_origin(one.origin).module, depth)
            part = part_of(capture, capture.graphs[one.graph])
            return f"{part}: {module}" if part else module
        if by == "line":
            return file_line(places.of_origin(one.origin).line) or "(no line)"
        return capture.graphs[one.graph].name

    rows: list[PoolRow] = []
    groups: list[GroupRow] = []
    held: list[HolderRow] = []
    shared: list[SharedRow] = []
    rounding = 0
    chosen = [index for index, one in enumerate(memory.pools) if not only or one.name in only]
    for index in chosen:
        pool = memory.pools[index]
        mine = by_pool[index]
        peak, at = _peak(mine, lambda one: one.bytes)
        floor, _ = _peak(mine, lambda one: one.requested_bytes)
        reserved = reserved_bytes(pool)
        where = next((one for one in mine if one.allocated_at == at), None)
        rows.append(
            PoolRow(
                pool.name,
                len(pool.segments),
                reserved,
                live_bytes(pool),
                peak,
                reserved - _covered(pool, mine),
                floor,
                len(mine),
                tuple(graph.name for graph in capture.graphs if graph.pool == index),
                _where(capture, places, where),
            )
        )
        members: dict[str, list[Allocation]] = defaultdict(list)
        for one in mine:
            members[group_of(one)].append(one)
        spent: Counter[str] = Counter()
        for node in _timed(capture, index):
            spent[group_of(node)] += node.duration_ns
        split = [
            GroupRow(
                pool.name,
                name,
                len(some),
                sum(one.requested_bytes for one in some),
                sum(one.bytes for one in some if one.freed_at is None),
                _peak(some, lambda one: one.bytes)[0],
                spent.get(name),
            )
            for name, some in members.items()
        ]
        groups += sorted(split, key=lambda one: -one.peak)
        for one in mine:
            if one.freed_at is None:
                rounding += one.bytes - one.requested_bytes
                place = places.of_origin(one.origin)
                held.append(
                    HolderRow(
                        pool.name,
                        one.label or "saved for backward, or held by the code",
                        one.bytes,
                        capture.graphs[one.graph].name,
                        place.short_op or "",
                        file_line(place.line),
                        place.module or "",
                    )
                )
        shared += _shared(capture, pool, mine)
    held.sort(key=lambda one: -one.bytes)
    exec_bytes = [
        graph.exec_bytes
        for graph in capture.graphs
        if graph.exec_bytes is not None and (not only or graph.pool in chosen)
    ]
    return PoolsReport(
        capture.entry.spec,
        capture.environment.device,
        capture.environment.simulated,
        tuple(rows),
        tuple(groups),
        by,
        tuple(held[:holders]),
        max(0, len(held) - holders),
        sum(one.bytes for one in held[holders:]),
        tuple(shared),
        sum(exec_bytes) if exec_bytes else None,
        rounding,
    )


def _where(capture: Capture, places: Places, one: Allocation | None) -> str:
    if one is None:
        return ""
    place = places.of_origin(one.origin)
    parts = (capture.graphs[one.graph].name, place.short_op, file_line(place.line))
    return " ".join(part for part in parts if part)


def _shared(capture: Capture, pool: Pool, allocations: list[Allocation]) -> list[SharedRow]:
    """Bytes that a later graph was given again after an earlier one gave them back."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in allocations:
        spans[one.graph].append((one.address, one.address + one.bytes))
    merged = {graph: _merge(ranges) for graph, ranges in spans.items()}
    order = sorted(merged)
    found = []
    for number, first in enumerate(order):
        for second in order[number + 1 :]:
            overlap = _overlap(merged[first], merged[second])
            if overlap:
                found.append(
                    SharedRow(
                        pool.name,
                        capture.graphs[first].name,
                        capture.graphs[second].name,
                        overlap,
                    )
                )
    return found


def _merge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _overlap(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> int:
    total = i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        total += max(0, high - low)
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return total
