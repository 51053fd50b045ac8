"""What could run at the same time: nodes that the edges order although they are independent.

A capture on one stream is a chain, even if its ops do not depend on each other. Compared with what
the ops read and write, this says how much shorter a replay could be at most, and which lines to put
on streams of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from cgtool.analysis.graph import dependencies
from cgtool.analysis.graph.pieces import Pair, more_bytes, pairs, pieces
from cgtool.analysis.graph.places import Place, Places, file_line
from cgtool.analysis.graph.schedule import (
    by_edges,
    durations,
    longest,
    node_order,
    schedule,
    waits,
    weights,
)
from cgtool.analysis.timing import roofline
from cgtool.findings.registry import code
from cgtool.model.capture import Capture, Node
from cgtool.model.finding import Finding

CONCURRENCY_LOST_OR_FALSE_DEPENDENCY = code("concurrency-lost-or-false-dependency")

WORTH_SAYING = 0.1
"""Share of the critical path from which a possible gain is a finding."""
_SHOWN = 5
"""Pairs of lines that a finding names."""


class Overlap(msgspec.Struct, frozen=True):
    """What overlapping could gain in one graph. An upper bound: launching on several streams costs
    nodes that wait, and kernels that run at once take memory bandwidth from each other."""

    graph: int
    """Index into ``Capture.graphs``."""
    timed: bool
    """False where no node's time is known: then all times are 0, and only counts of nodes tell."""
    recorded: bool
    """False for a capture that does not say what its op calls read and wrote: then nodes are
    judged by pointers, nearly all of which keep their order."""
    length_ns: int
    """The critical path through the edges."""
    needed_ns: int
    """The longest path through the dependencies of the data."""
    work_ns: int
    """Sum over the nodes of time times the share of the device that its blocks fill: no order makes
    the replay shorter."""
    length_nodes: int
    """Nodes on the longest chain through the edges."""
    needed_nodes: int
    """Nodes on the longest chain through the dependencies of the data."""
    pairs: tuple[Pair, ...]
    """By lines, the largest gain first."""
    unneeded_edges: int
    """Edges between two nodes that take time and do not depend on each other."""
    more_bytes: int
    """Bytes that the pool would need in addition, at most, if all of this overlapped: memory that
    it reuses while its first use would still be running. Each stream that runs matmuls takes a
    cuBLAS workspace on top."""
    guessed: int
    """Nodes outside any recorded op, judged by the pointers among their arguments."""
    barriers: int
    """Nodes that keep their place because what they read and write is unknown."""
    unsized: int
    """Timed nodes whose share of the device is unknown; it counts as 0."""

    @property
    def bound_ns(self) -> int:
        """No order of these nodes on this device is shorter."""
        return min(self.length_ns, max(self.needed_ns, self.work_ns))

    @property
    def gain_ns(self) -> int:
        """What overlapping could gain at most."""
        return self.length_ns - self.bound_ns

    @property
    def gain(self) -> float:
        """As a share of the critical path."""
        return self.gain_ns / self.length_ns if self.length_ns else 0.0


def find_overlap(capture: Capture, index: int) -> Overlap:
    """What overlapping could gain in ``capture.graphs[index]``."""
    graph = capture.graphs[index]
    needs, edges = dependencies.find_dependencies(capture, index), waits(graph)
    times, counts = durations(capture, graph), weights(graph)
    timed = any(times)
    now, _ = by_edges(graph, times if timed else counts, edges)
    free = schedule(needs.order, times if timed else counts, needs.before)
    fills = [_fill(capture, node) for node in graph.nodes]
    known = [0.0 if fill is None else fill for fill in fills]
    chain = longest(needs.order, counts, edges)
    overlap = Overlap(
        graph=index,
        timed=timed,
        recorded=needs.recorded,
        length_ns=now.length if timed else 0,
        # The order inside one op call is taken from its nodes, and may be stricter than its edges.
        needed_ns=min(free.length, now.length) if timed else 0,
        work_ns=round(sum(time * fill for time, fill in zip(times, known, strict=True))),
        length_nodes=chain,
        needed_nodes=min(longest(needs.order, counts, needs.before), chain),
        pairs=(),
        unneeded_edges=sum(free.independent(edge.source, edge.target) for edge in graph.edges),
        more_bytes=0,
        guessed=len(needs.guessed),
        barriers=len(needs.barriers),
        unsized=sum(fill is None and time > 0 for fill, time in zip(fills, times, strict=True)),
    )
    movable = list(pieces(free, needs.order, needs.before))
    if not movable:
        return overlap
    order = node_order(graph, needs.order, edges)
    before = order.before if order is not None else now.ordered
    sequential = pairs(
        capture, graph, movable, before, free, known, gain_ns=overlap.gain_ns, timed=timed
    )
    more = more_bytes(capture, graph, free) if sequential else 0
    return msgspec.structs.replace(overlap, pairs=sequential, more_bytes=more)


def _fill(capture: Capture, node: Node) -> float | None:
    """The share of the device that the blocks of a kernel fill, at most 1."""
    waves = roofline.waves(capture, node)
    return None if waves is None else min(1.0, waves)


def sentence(capture: Capture, overlap: Overlap, pair: Pair) -> str:
    """``aten::mm at model.py:31 and aten::mm at model.py:33 are independent: running them at the
    same time would gain at most 12 us of 80 us``; in nodes where no time is known."""
    nodes, places = capture.graphs[overlap.graph].nodes, Places(capture)
    first, second = (_words(places.of(nodes[node])) for node in (pair.one, pair.other))
    times = f" ({pair.times} times)" if pair.times > 1 else ""
    gain = (
        f"{pair.gain_ns / 1e3:.1f} us of {overlap.length_ns / 1e3:.1f} us"
        if overlap.timed
        else f"{len(pair.nodes)} of {overlap.length_nodes} nodes"
    )
    return (
        f"{first} and {second} are independent{times}: running them at the same time would gain at "
        f"most {gain}"
    )


def _words(place: Place) -> str:
    name = place.op or place.autograd_node or "a launch outside any op"
    at = file_line(place.line)
    module = f" ({place.module})" if place.module else ""
    return f"{name} at {at}{module}" if at else f"{name}{module}"


def look(capture: Capture, overlaps: Iterable[Overlap] | None = None) -> tuple[Finding, ...]:
    """A finding for each captured graph in which overlapping could gain 10 % or more, by measured
    times. ``overlaps`` are those of the graphs without a parent, where they are known."""
    if overlaps is None:
        overlaps = (
            find_overlap(capture, index)
            for index, graph in enumerate(capture.graphs)
            if graph.parent is None
        )
    return tuple(
        _finding(capture, overlap)
        for overlap in overlaps
        if overlap.gain >= WORTH_SAYING and overlap.pairs
    )


def _finding(capture: Capture, overlap: Overlap) -> Finding:
    graph, pair = capture.graphs[overlap.graph], overlap.pairs[0]
    node = graph.nodes[pair.one]
    origin = None if node.origin is None else capture.origins[node.origin]
    forward = None if origin is None or origin.forward is None else capture.origins[origin.forward]
    frames, forward_frames = (
        tuple(capture.frames[index] for index in each.frames) if each is not None else ()
        for each in (origin, forward)
    )
    fix = "put one of the two on a stream of its own, and join it before its result is read"
    if forward is not None:
        fix = (
            "put independent branches of the forward on streams of their own: the backward of an "
            "op runs on the stream of its forward"
        )
    return Finding(
        CONCURRENCY_LOST_OR_FALSE_DEPENDENCY,
        f"{graph.name} runs independent work sequentially, "
        + ("ordered by waits between streams" if pair.across else "captured on one stream")
        + f": running it at the same time would gain at most {overlap.gain_ns / 1e3:.1f} us "
        f"of {overlap.length_ns / 1e3:.1f} us ({overlap.gain:.0%})",
        frames,
        module=origin.module if origin is not None else None,
        forward=forward_frames,
        phase=graph.phase,
        fix=None if pair.across else fix,
        evidence=tuple(_evidence(capture, overlap)),
    )


def _evidence(capture: Capture, overlap: Overlap) -> Iterator[str]:
    yield (
        f"critical path {overlap.length_ns / 1e3:.1f} us; by data dependencies it would be "
        f"{overlap.needed_ns / 1e3:.1f} us, with the GPU full for {overlap.work_ns / 1e3:.1f} us"
    )
    for pair in overlap.pairs[:_SHOWN]:
        yield sentence(capture, overlap, pair)
    if overlap.more_bytes:
        yield (
            f"the pool would need up to {overlap.more_bytes / 2**20:.2f} MiB more: memory that it "
            "reuses would be in use twice"
        )
