"""The report of ``cgtool pools``: the memory pools of a capture, to the byte; and those of a
program, with what keeps them alive.

- reserved: what CUDA gave to the pool, the sum of its segments
- live: bytes in blocks that are still held when the capture ends
- peak: most bytes in blocks at once during the capture
- untouched: bytes of the segments that no allocation covered
- floor: most requested bytes at once; with these lifetimes no pool is smaller
- requested: the sum over all allocations; memory that is reused counts each time
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

import msgspec

from cgtool.analysis.graph.places import Places, file_line, part_of
from cgtool.analysis.units import bytes_text, count_text, total_of
from cgtool.model.capture import Allocation, Block, Capture, Graph, Pool, Segment
from cgtool.model.ledger import Ledger, LedgerGraph, LedgerPool

_Memory = Allocation | Block | Segment

UNNAMED_HOLDER = "saved for backward, or held by the code"
"""The holder shown for a block that is live at the end and that nothing with a name holds."""


class PoolRow(msgspec.Struct, frozen=True):
    """One pool."""

    name: str
    segments: int
    """How many pieces of memory CUDA gave to it."""
    reserved_bytes: int
    """Bytes of all segments."""
    live_bytes: int
    """In blocks that are still held when the capture ends."""
    peak_bytes: int
    """Most in blocks at once during the capture."""
    untouched_bytes: int
    """Bytes of the segments that no block ever used."""
    floor_bytes: int
    """Most requested bytes at once: with these lifetimes no pool is smaller."""
    allocations: int
    """How many were made while the graphs were captured."""
    graphs: tuple[str, ...]
    """The names of those that were captured into it."""
    peak_at: str
    """Where the peak was reached: graph, op and line."""

    def __repr__(self) -> str:
        reserved, live, peak = map(
            bytes_text, (self.reserved_bytes, self.live_bytes, self.peak_bytes)
        )
        return f"<pool {self.name}: {reserved} reserved, {live} live, peak {peak}>"


class GroupRow(msgspec.Struct, frozen=True):
    """Allocations of one graph, stream, module or line."""

    pool: str
    group: str
    allocations: int
    requested_bytes: int
    """Sum over all allocations: memory that is reused counts each time."""
    live_bytes: int
    peak_bytes: int
    """Most bytes of this group at once."""
    time_ns: int | None
    """GPU time of its nodes in one replay; None if it was not measured."""


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
    """Bytes of a pool that two graphs use, one after the other."""

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
    """Total of those holders."""
    shared: tuple[SharedRow, ...]
    driver_bytes: int | None
    """Device memory that the driver takes for the executable graphs, outside the pools."""
    rounding_bytes: int
    """Live bytes beyond those that were requested."""


def pools_report(
    capture: Capture,
    *,
    only: Sequence[str] = (),
    by: str = "graph",
    depth: int = 2,
    holders: int = 12,
) -> PoolsReport:
    """Rows for every pool, or those named by ``only``, split by ``graph``, ``stream``,
    ``module`` (``depth`` names of its path) or ``line``; ``holders`` live blocks."""
    memory = capture.memory
    places, by_pool = Places(capture), _by_pool(capture)
    rows = pool_rows(capture)

    def group_of(graph: int, origin: int | None, stream: int | None) -> str:
        if by == "stream":
            return "(another stream)" if stream is None else capture.streams[stream].name
        if by == "module":
            module = places.of_origin(origin).module_at(depth)
            part = part_of(capture, capture.graphs[graph])
            return f"{part}: {module}" if part else module
        if by == "line":
            return file_line(places.of_origin(origin).line) or "(no line)"
        return capture.graphs[graph].name

    groups: list[GroupRow] = []
    held: list[HolderRow] = []
    shared: list[SharedRow] = []
    rounding = 0
    chosen = [index for index, pool in enumerate(memory.pools) if not only or pool.name in only]
    for index in chosen:
        pool, allocations = memory.pools[index], by_pool[index]
        members: dict[str, list[Allocation]] = defaultdict(list)
        for allocation in allocations:
            group = group_of(allocation.graph, allocation.origin, allocation.stream)
            members[group].append(allocation)
            if allocation.freed_at is None:
                rounding += allocation.bytes - allocation.requested_bytes
                place = places.of_origin(allocation.origin)
                held.append(
                    HolderRow(
                        pool.name,
                        allocation.label or UNNAMED_HOLDER,
                        allocation.bytes,
                        capture.graphs[allocation.graph].name,
                        place.short_op or "",
                        file_line(place.line),
                        place.module or "",
                    )
                )
        time_ns: Counter[str] = Counter()
        for number, graph in enumerate(capture.graphs):
            for node in graph.nodes if graph.pool == index else ():
                if node.duration_ns is not None:
                    time_ns[group_of(number, node.origin, node.stream)] += node.duration_ns
        of_pool = [
            GroupRow(
                pool.name,
                name,
                len(group),
                sum(allocation.requested_bytes for allocation in group),
                sum(allocation.bytes for allocation in group if allocation.freed_at is None),
                peak_of(group)[0],
                time_ns.get(name),
            )
            for name, group in members.items()
        ]
        groups += sorted(of_pool, key=lambda row: -row.peak_bytes)
        shared += _shared(capture, pool, allocations)
    held.sort(key=lambda row: -row.bytes)
    return PoolsReport(
        capture.entry.spec,
        capture.environment.device,
        capture.environment.simulated,
        tuple(rows[index] for index in chosen),
        tuple(groups),
        by,
        tuple(held[:holders]),
        max(0, len(held) - holders),
        sum(row.bytes for row in held[holders:]),
        tuple(shared),
        driver_bytes(graph for graph in capture.graphs if not only or graph.pool in chosen),
        rounding,
    )


def pool_rows(capture: Capture) -> tuple[PoolRow, ...]:
    """The totals of every pool, not split further."""
    places, by_pool = Places(capture), _by_pool(capture)
    rows: list[PoolRow] = []
    for index, pool in enumerate(capture.memory.pools):
        allocations = by_pool[index]
        peak, event = peak_of(allocations)
        where = ""
        at_peak = next((each for each in allocations if each.allocated_at == event), None)
        if at_peak is not None:
            place = places.of_origin(at_peak.origin)
            facts = (capture.graphs[at_peak.graph].name, place.short_op, file_line(place.line))
            where = " ".join(fact for fact in facts if fact)
        used: list[_Memory] = [*allocations, *_used_blocks(pool)]
        rows.append(
            PoolRow(
                pool.name,
                len(pool.segments),
                reserved_bytes(pool),
                live_bytes(pool),
                peak,
                reserved_bytes(pool) - _common_bytes(used, pool.segments),
                peak_of(allocations, lambda allocation: allocation.requested_bytes)[0],
                len(allocations),
                tuple(graph.name for graph in capture.graphs if graph.pool == index),
                where,
            )
        )
    return tuple(rows)


def _by_pool(capture: Capture) -> dict[int, list[Allocation]]:
    by_pool: dict[int, list[Allocation]] = defaultdict(list)
    for allocation in capture.memory.allocations:
        by_pool[allocation.pool].append(allocation)
    return by_pool


def _shared(capture: Capture, pool: Pool, allocations: Iterable[Allocation]) -> list[SharedRow]:
    """Bytes that an earlier graph freed and a later graph allocated again."""
    by_graph: dict[int, list[Allocation]] = defaultdict(list)
    for allocation in allocations:
        by_graph[allocation.graph].append(allocation)
    return [
        SharedRow(pool.name, capture.graphs[first].name, capture.graphs[second].name, shared)
        for first, second in combinations(sorted(by_graph), 2)
        if (shared := _common_bytes(by_graph[first], by_graph[second]))
    ]


def peak_of(
    allocations: Iterable[Allocation],
    size: Callable[[Allocation], int] = lambda allocation: allocation.bytes,
) -> tuple[int, int]:
    """(most bytes at once, event at which that was reached)."""
    changes: list[tuple[int, int]] = []
    for allocation in allocations:
        changes.append((allocation.allocated_at, size(allocation)))
        if allocation.freed_at is not None:
            changes.append((allocation.freed_at, -size(allocation)))
    now = best = at = 0
    for event, change in sorted(changes):
        now += change
        if now > best:
            best, at = now, event
    return best, at


def live_bytes(pool: Pool) -> int:
    """Bytes in blocks that are not free."""
    return sum(block.bytes for block in _used_blocks(pool))


def reserved_bytes(pool: Pool) -> int:
    """Bytes of all segments."""
    return sum(segment.bytes for segment in pool.segments)


def driver_bytes(graphs: Iterable[Graph]) -> int | None:
    """Device memory that the driver takes for the executable graphs; None if unknown."""
    return total_of(graph.exec_bytes for graph in graphs)


def _used_blocks(pool: Pool) -> list[Block]:
    return [
        block for segment in pool.segments for block in segment.blocks if block.state != "inactive"
    ]


def _common_bytes(left: Iterable[_Memory], right: Iterable[_Memory]) -> int:
    """Bytes of addresses that both sides cover."""
    changes: list[tuple[int, int, int]] = []
    for memory in left:
        changes += [(memory.address, 1, 0), (memory.address + memory.bytes, -1, 0)]
    for memory in right:
        changes += [(memory.address, 0, 1), (memory.address + memory.bytes, 0, -1)]
    total = last = of_left = of_right = 0
    for address, left_change, right_change in sorted(changes):
        if of_left and of_right:
            total += address - last
        last, of_left, of_right = address, of_left + left_change, of_right + right_change
    return total


# --- the pools of a program


class ProgramPoolRow(msgspec.Struct, frozen=True):
    """One pool, when its last graph ended, or else at the end of its process."""

    name: str
    process: int
    graphs: int
    """All that were captured into it."""
    kept_by: str
    """``3 graphs``, ``tensors``; empty if nothing did."""
    streams: int
    """Memory that was allocated for one is not used for another."""
    reserved_bytes: int
    used_bytes: int
    free_bytes: int
    """Which only a later capture into the same pool, on the same stream, can use, as long as
    something keeps it."""
    exec_bytes: int | None
    """The driver's memory for the executable graphs, when they were instantiated."""

    def __repr__(self) -> str:
        reserved, used = map(bytes_text, (self.reserved_bytes, self.used_bytes))
        graphs = count_text(self.graphs, "graph")
        return (
            f"<{self.name} of process {self.process}: {graphs}, {reserved} reserved, {used} used>"
        )


def program_pools(capture: Capture, ledger: Ledger) -> tuple[ProgramPoolRow, ...]:
    """The pools that were read, the largest first."""
    rows = [_program_row(capture, ledger, pool) for pool in ledger.pools]
    return tuple(sorted(rows, key=lambda row: -row.reserved_bytes))


def unread_pools(capture: Capture, ledger: Ledger) -> int:
    """How many pools of graphs nobody has read, because their process did not come to its end."""
    read = {(each.process, capture.memory.pools[each.pool].id) for each in ledger.pools}
    pools = {
        (each.process, each.pool)
        for each in ledger.graphs
        if each.pool is not None and ledger.processes[each.process].ended_ns is None
    }
    return len(pools - read)


def _program_row(capture: Capture, ledger: Ledger, pool: LedgerPool) -> ProgramPoolRow:
    memory = capture.memory.pools[pool.pool]
    graphs = [
        each for each in ledger.graphs if each.process == pool.process and each.pool == memory.id
    ]
    there = [each for each in graphs if each.ended_ns is None or each.ended_ns > pool.read_ns]
    reserved = sum(stream.reserved_bytes for stream in pool.streams)
    used = sum(stream.used_bytes for stream in pool.streams)
    return ProgramPoolRow(
        name=memory.name,
        process=pool.process,
        graphs=sum(not each.holds_a_pool for each in graphs),
        kept_by=_kept_by(there, used),
        streams=len(pool.streams),
        reserved_bytes=reserved,
        used_bytes=used,
        free_bytes=reserved - used,
        exec_bytes=total_of(
            None if each.graph is None else capture.graphs[each.graph].exec_bytes for each in graphs
        ),
    )


def _kept_by(there: list[LedgerGraph], used_bytes: int) -> str:
    holders = sum(each.holds_a_pool for each in there)
    graphs = len(there) - holders
    parts = [count_text(graphs, "graph")] if graphs else []
    if holders:
        parts.append("torch.compile")
    if not parts and used_bytes:
        parts.append("tensors")
    return " and ".join(parts)
