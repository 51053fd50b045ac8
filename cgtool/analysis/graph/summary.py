"""The screen of ``cgtool capture`` as data, and findings that need nothing but the capture."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from cgtool.analysis.graph.places import (
    WORK,
    Place,
    Places,
    file_line,
    frames_of,
    part_of,
)
from cgtool.analysis.pools import pool_rows, reserved_bytes
from cgtool.analysis.units import count_text, total_of
from cgtool.findings import code
from cgtool.model.capture import Capture, Caveat, Graph
from cgtool.model.finding import Finding

FRAGMENTATION_UNREACHABLE_RESERVE = code("fragmentation-unreachable-reserve")
HOST_CALLBACK_DEADLOCK = code("host-callback-deadlock")
MEM_ALLOC_NODES = code("mem-alloc-nodes")

_WASTE_BYTES = 64 << 20
_WASTE_SHARE = 2.0
"""A pool of this many times the bytes that its lifetimes need is reported."""
_MODULE_ROWS = 16
_OP_ROWS = 8
_DEEPEST = 8
_NUMBER = re.compile(r"(?<![^. ])[0-9]+(?![^.])")
"""The first number of a module path that is a whole name."""
_REPEATED = 3
"""At least so many equal modules in a container count as repeated layers, whatever else is in
it."""
_SUMMED = ("forward", "backward", "share")


class GraphRow(msgspec.Struct, frozen=True):
    """One graph. Durations in nanoseconds; None if the device has no such figure."""

    name: str
    phase: str
    part: str | None
    """Name of the callable, if there are several."""
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
    """Module path; ``generator: 0`` if there are several callables; ``layers.*`` for several
    modules of one type with as many nodes each."""
    type: str
    modules: int
    """Number of modules in this row."""
    forward: int
    """Nodes of all of them."""
    backward: int
    share: float


class OpRow(msgspec.Struct, frozen=True):
    op: str
    """``mul``: of all its overloads (``mul.Tensor``, ``mul.Scalar``)."""
    nodes: int
    line: str
    """The line with most of its nodes."""


class Coverage(msgspec.Struct, frozen=True):
    """How many of the nodes that do work have each part of their provenance."""

    nodes: int
    op: int
    module: int
    line: int
    backward: int
    forward_line: int
    """Nodes in backward whose forward line is known."""


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
        return total_of(row.exec_bytes for row in self.graphs)


def summarize(capture: Capture, depth: int | None = None, *, every_op: bool = False) -> Summary:
    """Count and group. ``depth``: of module paths; by default the deepest that fits
    ``_MODULE_ROWS``; ``every_op``: not only those with most nodes."""
    places = Places(capture)
    placed = [
        (graph, places.of(node))
        for graph in capture.graphs
        for node in graph.nodes
        if node.type in WORK
    ]
    depth, modules = _modules(capture, placed, depth)
    by_op: dict[str, Counter[str]] = defaultdict(Counter)
    for _, place in placed:
        by_op[place.short_op or "(outside any op)"][file_line(place.line)] += 1
    ops = sorted(by_op.items(), key=lambda item: (-item[1].total(), item[0]))
    shown = ops if every_op else ops[:_OP_ROWS]
    backward = [place for graph, place in placed if graph.phase == "backward"]
    entry = capture.entry.file, capture.entry.line

    def at_entry(place: Place) -> bool:
        """Whether its line is that of the entry point, which calls without a line get."""
        return place.line is not None and (place.line.file, place.line.line) == entry

    environment, pools = capture.environment, capture.memory.pools
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
        ops=tuple(OpRow(name, lines.total(), lines.most_common(1)[0][0]) for name, lines in shown),
        ops_left_out=len(ops) - len(shown),
        coverage=Coverage(
            nodes=len(placed),
            op=sum(place.op is not None for _, place in placed),
            module=sum(place.module is not None for _, place in placed),
            line=sum(place.line is not None and not at_entry(place) for _, place in placed),
            backward=len(backward),
            forward_line=sum(
                place.forward_frame is not None and not at_entry(place) for place in backward
            ),
        ),
        pool_bytes=sum(map(reserved_bytes, pools)),
        pools=len(pools),
        warmup_iters=capture.warmup_iters,
        recorder=capture.recorder,
        caveats=capture.caveats,
    )


def _graph(capture: Capture, graph: Graph) -> GraphRow:
    return GraphRow(
        graph.name,
        graph.phase,
        part_of(capture, graph),
        len(graph.nodes),
        dict(Counter(node.type for node in graph.nodes).most_common()),
        len(graph.edges),
        len({node.stream for node in graph.nodes} - {None}),
        graph.capture_ns,
        graph.instantiate_ns,
        median(graph.launch_ns) if graph.launch_ns else None,
        graph.exec_bytes,
    )


def _modules(
    capture: Capture, placed: Sequence[tuple[Graph, Place]], only: int | None
) -> tuple[int, tuple[ModuleRow, ...]]:
    """The rows of the depth ``only``, else of the deepest that fits; and that depth."""
    parts = {graph.callable: part_of(capture, graph) for graph in capture.graphs}
    prefix = {number: f"{part}: " if part else "" for number, part in parts.items()}
    modules = {place.module for _, place in placed if place.module}
    deepest = max((module.count(".") + 1 for module in modules), default=1)
    types = {module.path: module.type for module in capture.modules}
    # Captures of earlier versions know those of modules that ran ops themselves.
    types |= {place.module: place.module_type or "" for _, place in placed if place.module}
    chosen: tuple[ModuleRow, ...] = ()
    depth = 1
    for candidate in [only] if only else range(1, min(deepest, _DEEPEST) + 1):
        counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for graph, place in placed:
            counts[prefix[graph.callable], place.module_at(candidate)][
                graph.phase == "backward"
            ] += 1
        rows = _folded(
            [
                ModuleRow(
                    part + name,
                    types.get("" if name == "(root)" else name, ""),
                    1,
                    forward,
                    backward,
                    (forward + backward) / len(placed),
                )
                for (part, name), (forward, backward) in counts.items()
            ]
        )
        if chosen and len(rows) > _MODULE_ROWS:
            break
        chosen, depth = rows, candidate
    return depth, chosen


def _folded(rows: Sequence[ModuleRow]) -> tuple[ModuleRow, ...]:
    """Merge repeated layers into one row: modules of one type with the same number of nodes each,
    whose paths differ in one number. Two equal modules among different ones (a Linear before and
    after a ReLU) are not repeated layers."""
    pattern_of = {row.module: _NUMBER.sub("*", row.module, count=1) for row in rows}
    similar = Counter(pattern_of.values())
    groups: dict[object, list[ModuleRow]] = defaultdict(list)
    for row in rows:
        groups[pattern_of[row.module], row.type, row.forward, row.backward].append(row)
    folded: dict[str, ModuleRow] = {}
    for members in groups.values():
        pattern = pattern_of[members[0].module]
        if len(members) == 1 or not (len(members) >= _REPEATED or len(members) == similar[pattern]):
            folded |= {row.module: row for row in members}
            continue
        sums = (sum(getattr(row, name) for row in members) for name in _SUMMED)
        first = members[0]
        folded[first.module] = ModuleRow(pattern, first.type, len(members), *sums)
    return tuple(folded[row.module] for row in rows if row.module in folded)


def graph_findings(capture: Capture) -> Iterator[Finding]:
    """Findings of every graph and pool."""
    for graph in capture.graphs:
        host = [node for node in graph.nodes if node.type == "host"]
        if host:
            yield Finding(
                HOST_CALLBACK_DEADLOCK,
                f"{graph.name} has {count_text(len(host), 'host node')}: every replay waits "
                "for a function on the host, which must not call CUDA",
                frames_of(capture, host[0].origin),
                phase=graph.phase,
            )
        memory = [node for node in graph.nodes if node.type in ("alloc", "free")]
        if memory:
            yield Finding(
                MEM_ALLOC_NODES,
                f"{graph.name} has {len(memory)} nodes that allocate or free device memory in "
                "every replay",
                frames_of(capture, memory[0].origin),
                phase=graph.phase,
            )
    for index, row in enumerate(pool_rows(capture)):
        needed = max(row.floor_bytes, 1)
        if row.reserved_bytes - needed < _WASTE_BYTES or row.reserved_bytes < _WASTE_SHARE * needed:
            continue
        sizes: Counter[int | None] = Counter()
        for allocation in capture.memory.allocations:
            if allocation.pool == index:
                sizes[allocation.origin] += allocation.bytes
        yield Finding(
            FRAGMENTATION_UNREACHABLE_RESERVE,
            f"the pool {row.name} reserves {row.reserved_bytes / 2**20:.0f} MiB, but its "
            f"allocations need {needed / 2**20:.0f} MiB at once",
            frames_of(capture, sizes.most_common(1)[0][0] if sizes else None),
            evidence=(f"peak of the blocks in use: {row.peak_bytes / 2**20:.0f} MiB",),
        )
