"""The memory that a program's graphs use and have not allocated: whose it is, what became of it,
and replays that used it after it was given back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.ledger_costs import numbers_of
from cgtool.analysis.reports import place_of
from cgtool.analysis.units import count_text
from cgtool.findings import code
from cgtool.model.capture import Capture, Frame
from cgtool.model.finding import Finding
from cgtool.model.ledger import Ledger, LedgerGraph, LedgerMemory, MemoryUse

INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")

_GIVEN_BACK = {
    "freed": "was freed here",
    "collected": "was freed here, by Python's garbage collector",
    "resized": "was given back here, by `resize_`",
}
"""By ``LedgerMemory.how``."""
_FIX_OF_WEIGHTS = (
    "load weights in place (`load_state_dict` without `assign=True`, `p.data.copy_(q)`), or "
    "capture again"
)
_FIXES = {
    "parameter": _FIX_OF_WEIGHTS,
    "buffer": _FIX_OF_WEIGHTS,
    "gradient": "keep gradients where they are (`zero_grad(set_to_none=False)`), or capture again",
    "optimizer state": "copy into the tensors of the state (`load_state_dict` of an optimizer puts "
    "others in their place), or capture again",
}
"""By ``LedgerMemory.kind``."""
_FIX_OF_RESIZED = (
    "keep the memory of what the graph reads for as long as it is replayed, or capture again when "
    "it is back"
)
_SHOWN = 3


@dataclass(frozen=True)
class MemoryRow:
    """Memory of one kind that has met one fate."""

    kind: str
    """``parameter``, ``buffer``, ``gradient``, ``optimizer state``, ``variable``; ``pool`` for what
    graphs read from the pool of one before they write it; ``unknown`` if no name leads to it."""
    names: tuple[str, ...]
    """The largest first."""
    count: int
    """How many storages."""
    bytes: int
    graphs: int
    """That use some of it."""
    readers: int
    """Nodes of ops of these graphs that read some of it, and that write some."""
    writers: int
    allocated_at: str
    """The line that allocated the largest: ``engine.py:12``; empty if it is not known."""
    gone_at: str | None
    """``freed at engine.py:40``; None for memory that was there until its graphs ended."""
    stale_replays: int
    """Replays of graphs that use it, since memory of theirs was first given back."""


@dataclass(frozen=True)
class UsedMemory:
    """Memory that a graph uses and has not allocated: the storage of some tensors."""

    name: str
    """Empty if no name leads to it."""
    kind: str
    """As of ``LedgerMemory``; ``unknown`` if no name leads to it."""
    address: int
    bytes: int
    reads: tuple[int, ...]
    """The nodes of the ops that read it, and below those that write it."""
    writes: tuple[int, ...]
    allocated_at: str
    """``engine.py:12``; empty if it is not known."""
    gone_at: str | None
    """``freed at engine.py:40``; None if it was there until the graph ended."""


def used_memory(capture: Capture, graph: int) -> dict[int, tuple[UsedMemory, ...]]:
    """By number, the memory of the graphs of a program with these contents: an index of
    ``Capture.graphs``."""
    ledger = capture.ledger
    if ledger is None:
        return {}
    return {
        entry.number: tuple(
            UsedMemory(
                memory.name,
                memory.kind or "unknown",
                memory.address,
                memory.bytes,
                use.reads,
                use.writes,
                _line(capture, memory.allocated),
                _gone_at(capture, memory),
            )
            for use in entry.memory
            for memory in (ledger.memory[use.memory],)
        )
        for entry in ledger.graphs
        if entry.graph == graph
    }


def _line(capture: Capture, chain: tuple[int, ...]) -> str:
    return file_line(place_of(_frames(capture, chain)))


def _gone_at(capture: Capture, memory: LedgerMemory) -> str | None:
    if memory.gone_ns is None:
        return None
    place = _line(capture, memory.frames)
    return f"{memory.how} at {place}" if place else memory.how


def memory_rows(capture: Capture, ledger: Ledger) -> tuple[MemoryRow, ...]:
    """The memory by kind and fate, that which was given back first, the largest next."""
    groups: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for at, memory in enumerate(ledger.memory):
        groups[memory.kind or "unknown", _gone_at(capture, memory)].append(at)
    users: dict[int, list[LedgerGraph]] = defaultdict(list)
    reads, writes = defaultdict[int, int](int), defaultdict[int, int](int)
    for entry in ledger.graphs:
        for use in entry.memory:
            if ledger.memory[use.memory].kind == "pool" and not _reads_first(use):
                continue
            users[use.memory].append(entry)
            reads[use.memory] += len(use.reads)
            writes[use.memory] += len(use.writes)
    rows = []
    for (kind, gone_at), alike in groups.items():
        numbers = [at for at in alike if users[at]]
        graphs = {id(entry): entry for at in numbers for entry in users[at]}
        if graphs:
            # Memory is followed anew for a graph that is captured after the others have ended.
            distinct = dict.fromkeys(ledger.memory[at] for at in numbers)
            memories = sorted(distinct, key=lambda memory: -memory.bytes)
            rows.append(
                MemoryRow(
                    kind,
                    tuple(memory.name for memory in memories if memory.name),
                    len(memories),
                    sum(memory.bytes for memory in memories),
                    len(graphs),
                    sum(reads[at] for at in numbers),
                    sum(writes[at] for at in numbers),
                    _line(capture, memories[0].allocated),
                    gone_at,
                    sum(entry.stale_replays(numbers) for entry in graphs.values()),
                )
            )
    return tuple(sorted(rows, key=lambda row: (row.gone_at is None, -row.bytes)))


def _reads_first(use: MemoryUse) -> bool:
    return bool(use.reads) and (not use.writes or min(use.reads) <= min(use.writes))


def _frames(capture: Capture, chain: tuple[int, ...]) -> tuple[Frame, ...]:
    return tuple(capture.frames[frame] for frame in chain)


def stale_findings(capture: Capture) -> Iterator[Finding]:
    """Memory that was given back and then used by replays, by the line that gave it back."""
    ledger = capture.ledger
    assert ledger is not None
    found: dict[tuple[str, tuple[int, ...], str | None], list[tuple[LedgerGraph, MemoryUse]]] = (
        defaultdict(list)
    )
    for entry in ledger.graphs:
        for use in entry.memory:
            if use.replays is not None and entry.replays > use.replays:
                memory = ledger.memory[use.memory]
                fix = _FIX_OF_RESIZED if memory.how == "resized" else _FIXES.get(memory.kind)
                found[memory.how, memory.frames, fix].append((entry, use))
    for (how, _, fix), uses in found.items():
        memories = [ledger.memory[at] for at in dict.fromkeys(use.memory for _, use in uses)]
        entries = list({id(entry): entry for entry, _ in uses}.values())
        replays = sum(entry.stale_replays([use.memory for _, use in uses]) for entry in entries)
        frames = _frames(capture, memories[0].frames)
        given_back = _GIVEN_BACK[how] if frames else f"was {how}"
        were, which = ("was", "it uses") if len(entries) == 1 else ("were", "they use")
        yield Finding(
            INPUT_FREED_BEFORE_REPLAY,
            f"{count_text(len(entries), 'graph')} {were} replayed {count_text(replays, 'time')} "
            f"after memory that {which} {given_back}: {_named(memories)}",
            frames or _replaying(capture, entries[0]),
            phase="replay",
            fix=fix,
            evidence=tuple(dict.fromkeys(_evidence(capture, uses))),
            graphs=numbers_of(entries),
        )


def _replaying(capture: Capture, entry: LedgerGraph) -> tuple[Frame, ...]:
    """The calls that lead to most replays of a graph."""
    place = max(entry.replayed_at, key=lambda place: place.seen, default=None)
    return () if place is None else _frames(capture, place.frames)


def _named(memories: list[LedgerMemory]) -> str:
    """``self.weight``, 4,096 bytes; and 3 more."""
    first = max(memories, key=lambda memory: bool(memory.name))
    name = f"`{first.name}`" if first.name else f"{first.bytes:,} bytes at {first.address:#x}"
    return name + (f" and {len(memories) - 1:,} more" if len(memories) > 1 else "")


def _evidence(capture: Capture, uses: list[tuple[LedgerGraph, MemoryUse]]) -> Iterator[str]:
    """The ops that read and write it, and the replays that did."""
    for entry, use in uses[:_SHOWN]:
        if entry.graph is None:
            continue
        graph = capture.graphs[entry.graph]
        for nodes, verb in ((use.reads, "reads"), (use.writes, "writes")):
            node = next((graph.nodes[at] for at in nodes if at < len(graph.nodes)), None)
            if node is not None and node.origin is not None:
                origin = capture.origins[node.origin]
                place = _line(capture, origin.frames)
                module = f" of {origin.module}" if origin.module else ""
                name = _named([capture.ledger.memory[use.memory]]) if capture.ledger else ""
                yield (
                    f"node {node.id} of {graph.name}, {origin.op}{module} ({place}), {verb} {name}"
                )
    entry, use = uses[0]
    memory = capture.ledger.memory[use.memory] if capture.ledger else None
    if memory is not None and memory.allocated:
        yield f"{_named([memory])} was allocated at {_line(capture, memory.allocated)}"
    name = entry.owner if entry.graph is None else capture.graphs[entry.graph].name
    lines = [*dict.fromkeys(_line(capture, each.frames) for each in entry.replayed_at)][:_SHOWN]
    by = f", which {' and '.join(lines)} replay" if lines else ""
    by += "s" * (len(lines) == 1)
    yield f"the first replay since: number {(use.replays or 0) + 1:,} of {name}{by}"
