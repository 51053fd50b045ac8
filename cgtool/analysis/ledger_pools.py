"""The memory pools of a program's graphs: what they hold, and what keeps it alive."""

from __future__ import annotations

import msgspec

from cgtool.analysis.units import bytes_text, count_text, total_of
from cgtool.model.capture import Capture
from cgtool.model.ledger import Ledger, LedgerGraph, LedgerPool


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
    """Which only a later capture into the same pool, on the same stream, can use."""
    exec_bytes: int | None
    """The driver's memory for the executable graphs, when they were instantiated."""

    def __repr__(self) -> str:
        reserved, used = map(bytes_text, (self.reserved_bytes, self.used_bytes))
        graphs = count_text(self.graphs, "graph")
        return (
            f"<{self.name} of process {self.process}: {graphs}, {reserved} reserved, {used} used>"
        )


def pool_rows(capture: Capture, ledger: Ledger) -> tuple[ProgramPoolRow, ...]:
    """The pools that were read, the largest first."""
    rows = [_row(capture, ledger, pool) for pool in ledger.pools]
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


def _row(capture: Capture, ledger: Ledger, pool: LedgerPool) -> ProgramPoolRow:
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
