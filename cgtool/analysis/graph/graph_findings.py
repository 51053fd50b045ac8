"""What a finished capture tells by itself: nodes and pools that cost, or that stall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cgtool.analysis.memory.pools import explain
from cgtool.findings.registry import code
from cgtool.model.capture import Capture, Frame, Graph, Node
from cgtool.model.finding import Finding

FRAGMENTATION_UNREACHABLE_RESERVE = code("fragmentation-unreachable-reserve")
HOST_CALLBACK_DEADLOCK = code("host-callback-deadlock")
MEM_ALLOC_NODES = code("mem-alloc-nodes")

_WASTE_BYTES = 64 << 20
_WASTE_SHARE = 2.0
"""A pool of this many times the bytes that its lifetimes need is worth a word."""


def look(capture: Capture) -> tuple[Finding, ...]:
    """Findings of every graph and pool."""
    found: list[Finding] = []
    for graph in capture.graphs:
        found += _nodes(capture, graph)
    found += _pools(capture)
    return tuple(found)


def _frames(capture: Capture, origin: int | None) -> tuple[Frame, ...]:
    if origin is None:
        return ()
    return tuple(capture.frames[index] for index in capture.origins[origin].frames)


def _first(graph: Graph, *types: str) -> Node | None:
    return next((node for node in graph.nodes if node.type in types), None)


def _nodes(capture: Capture, graph: Graph) -> Iterator[Finding]:
    host = _first(graph, "host")
    if host is not None:
        count = sum(node.type == "host" for node in graph.nodes)
        yield Finding(
            HOST_CALLBACK_DEADLOCK,
            f"{graph.name} has {count} host node{'s' if count > 1 else ''}: every replay waits for "
            "a function on the host, which may not call CUDA",
            _frames(capture, host.origin),
            phase=graph.phase,
        )
    memory = _first(graph, "alloc", "free")
    if memory is not None:
        count = sum(node.type in ("alloc", "free") for node in graph.nodes)
        yield Finding(
            MEM_ALLOC_NODES,
            f"{graph.name} has {count} nodes that allocate or free device memory in every replay",
            _frames(capture, memory.origin),
            phase=graph.phase,
        )


def _pools(capture: Capture) -> Iterator[Finding]:
    for index, row in enumerate(explain(capture).pools):
        needed = max(row.floor, 1)
        if row.reserved - needed < _WASTE_BYTES or row.reserved < _WASTE_SHARE * needed:
            continue
        sizes: Counter[int | None] = Counter()
        for one in capture.memory.allocations:
            if one.pool == index:
                sizes[one.origin] += one.bytes
        origin = sizes.most_common(1)[0][0] if sizes else None
        yield Finding(
            FRAGMENTATION_UNREACHABLE_RESERVE,
            f"the pool {row.name} reserves {row.reserved / 2**20:.0f} MiB where its lifetimes need "
            f"{needed / 2**20:.0f} MiB at once",
            _frames(capture, origin),
            evidence=(f"peak of the blocks in use: {row.peak / 2**20:.0f} MiB",),
        )
