"""The screen of ``cgtool capture`` as data, and findings that need nothing but the capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

import msgspec

from cgtool.analysis.graph.places import WORK, Place, Places, frames_of, module_at_depth, part_of
from cgtool.analysis.pools import pools_report
from cgtool.findings.registry import code
from cgtool.model.capture import Capture, Caveat, Graph, Node
from cgtool.model.finding import Finding


class GraphRow(msgspec.Struct, frozen=True):
    """One graph. Durations in nanoseconds; None where the device has no such figure."""

    name: str
    phase: str
    part: str | None
    """Name of the callable, where there are several."""
    nodes: int
    types: dict[str, int]
    edges: int
    streams: int
    capture_ns: int | None
    instantiate_ns: int | None
    launch_ns: float | None
    """Median host time of one replay() on an idle stream."""
    exec_bytes: int | None


class ModuleRow(msgspec.Struct, frozen=True):
    """Nodes of one module, by phase."""

    module: str
    """Path; of several callables, ``generator: 0``."""
    type: str
    forward: int
    backward: int
    share: float


class OpRow(msgspec.Struct, frozen=True):
    op: str
    nodes: int
    line: str
    """The line with most of its nodes."""


class Coverage(msgspec.Struct, frozen=True):
    """Of the nodes that do work, how many have each part of their provenance."""

    nodes: int
    op: int
    module: int
    line: int
    backward: int
    forward_line: int
    """Of the nodes in backward."""


class Summary(msgspec.Struct, frozen=True):
    spec: str
    kind: str
    device: str
    simulated: bool
    torch: str
    driver: str | None
    graphs: tuple[GraphRow, ...]
    modules: tuple[ModuleRow, ...]
    module_depth: int
    ops: tuple[OpRow, ...]
    ops_left_out: int
    coverage: Coverage
    pool_bytes: int
    pools: int
    warmup_iters: int
    recorder: str
    caveats: tuple[Caveat, ...]

    @property
    def exec_bytes(self) -> int | None:
        """Device memory that the driver takes for the executable graphs; None if unknown."""
        known = [row.exec_bytes for row in self.graphs if row.exec_bytes is not None]
        return sum(known) if known else None


def _graph(capture: Capture, graph: Graph) -> GraphRow:
    return GraphRow(
        graph.name,
        graph.phase,
        part_of(capture, graph),
        len(graph.nodes),
        dict(Counter(node.type for node in graph.nodes).most_common()),
        len(graph.edges),
        len({node.stream for node in graph.nodes if node.stream is not None}),
        graph.capture_ns,
        graph.instantiate_ns,
        median(graph.launch_ns) if graph.launch_ns else None,
        graph.exec_bytes,
    )


def _covered(pairs: list[tuple[Graph, Node, Place]]) -> Coverage:
    backward = [place for graph, _, place in pairs if graph.phase == "backward"]
    return Coverage(
        nodes=len(pairs),
        op=sum(place.op is not None for _, _, place in pairs),
        module=sum(place.module is not None for _, _, place in pairs),
        line=sum(place.line is not None for _, _, place in pairs),
        backward=len(backward),
        forward_line=sum(place.forward_frame is not None for place in backward),
    )


def summarize(capture: Capture, *, module_rows: int = 16, op_rows: int = 8) -> Summary:
    """Count and group. The module depth is the deepest that fits ``module_rows``."""
    places = Places(capture)
    pairs = [
        (graph, node, places.of(node))
        for graph in capture.graphs
        for node in graph.nodes
        if node.type in WORK
    ]
    depth, modules = _modules(capture, pairs, module_rows)
    by_op: dict[str, Counter[str]] = {}
    for _, _, place in pairs:
        name = place.op or "(outside any op)"
        line = place.line
        text = f"{line.file.rpartition('/')[2]}:{line.line}" if line else ""
        by_op.setdefault(name, Counter())[text] += 1
    ops = sorted(by_op.items(), key=lambda item: (-item[1].total(), item[0]))
    environment = capture.environment
    return Summary(
        spec=capture.entry.spec,
        kind=capture.entry.kind,
        device=environment.device,
        simulated=environment.simulated,
        torch=environment.torch,
        driver=environment.driver_cuda,
        graphs=tuple(_graph(capture, graph) for graph in capture.graphs),
        modules=modules,
        module_depth=depth,
        ops=tuple(
            OpRow(name, lines.total(), lines.most_common(1)[0][0]) for name, lines in ops[:op_rows]
        ),
        ops_left_out=max(0, len(ops) - op_rows),
        coverage=_covered(pairs),
        pool_bytes=sum(segment.bytes for pool in capture.memory.pools for segment in pool.segments),
        pools=len(capture.memory.pools),
        warmup_iters=capture.warmup_iters,
        recorder=capture.recorder,
        caveats=capture.caveats,
    )


def _modules(
    capture: Capture, pairs: list[tuple[Graph, Node, Place]], limit: int
) -> tuple[int, tuple[ModuleRow, ...]]:
    parts = {graph.callable: part_of(capture, graph) for graph in capture.graphs}
    prefix = {number: f"{part}: " if part else "" for number, part in parts.items()}
    deepest = max((place.module.count(".") + 1 for _, _, place in pairs if place.module), default=1)
    chosen: dict[str, list[int]] = {}
    depth = 1
    for candidate in range(1, min(deepest, 8) + 1):
        counts: dict[str, list[int]] = {}
        for graph, _, place in pairs:
            name = prefix[graph.callable] + module_at_depth(place.module, candidate)
            row = counts.setdefault(name, [0, 0])
            row[graph.phase == "backward"] += 1
        if candidate > 1 and len(counts) > limit:
            break
        chosen, depth = counts, candidate
    types = {
        prefix[graph.callable] + place.module: place.module_type or ""
        for graph, _, place in pairs
        if place.module
    }
    total = sum(sum(row) for row in chosen.values()) or 1
    rows = [
        ModuleRow(name, types.get(name, ""), forward, backward, (forward + backward) / total)
        for name, (forward, backward) in chosen.items()
    ]
    return depth, tuple(rows)


FRAGMENTATION_UNREACHABLE_RESERVE = code("fragmentation-unreachable-reserve")
HOST_CALLBACK_DEADLOCK = code("host-callback-deadlock")
MEM_ALLOC_NODES = code("mem-alloc-nodes")

_WASTE_BYTES = 64 << 20
_WASTE_SHARE = 2.0
"""A pool of this many times the bytes that its lifetimes need is worth a word."""


def graph_findings(capture: Capture) -> tuple[Finding, ...]:
    """Findings of every graph and pool."""
    findings: list[Finding] = []
    for graph in capture.graphs:
        findings += _nodes(capture, graph)
    findings += _pools(capture)
    return tuple(findings)


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
            frames_of(capture, host.origin),
            phase=graph.phase,
        )
    memory = _first(graph, "alloc", "free")
    if memory is not None:
        count = sum(node.type in ("alloc", "free") for node in graph.nodes)
        yield Finding(
            MEM_ALLOC_NODES,
            f"{graph.name} has {count} nodes that allocate or free device memory in every replay",
            frames_of(capture, memory.origin),
            phase=graph.phase,
        )


def _pools(capture: Capture) -> Iterator[Finding]:
    for index, row in enumerate(pools_report(capture).pools):
        needed = max(row.floor, 1)
        if row.reserved - needed < _WASTE_BYTES or row.reserved < _WASTE_SHARE * needed:
            continue
        sizes: Counter[int | None] = Counter()
        for allocation in capture.memory.allocations:
            if allocation.pool == index:
                sizes[allocation.origin] += allocation.bytes
        origin = sizes.most_common(1)[0][0] if sizes else None
        yield Finding(
            FRAGMENTATION_UNREACHABLE_RESERVE,
            f"the pool {row.name} reserves {row.reserved / 2**20:.0f} MiB where its lifetimes need "
            f"{needed / 2**20:.0f} MiB at once",
            frames_of(capture, origin),
            evidence=(f"peak of the blocks in use: {row.peak / 2**20:.0f} MiB",),
        )
