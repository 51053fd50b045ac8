"""What could run side by side: nodes that the edges keep in order though their memory does not.

A capture on one stream is a chain, whatever its ops need of each other. Held against what they
read and write, this says how much shorter a replay could be at most, and which lines to put on
streams of their own for it.
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
"""Share of the critical path below which a possible gain is no finding."""
_SHOWN = 5
"""Pairs that a finding names."""


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
    """The longest path through what the data needs."""
    work_ns: int
    """Sum of each node's time by the share of the device that its blocks fill: no order makes the
    replay shorter."""
    length_nodes: int
    """Nodes on the longest chain through the edges."""
    needed_nodes: int
    """Nodes on the longest chain through what the data needs."""
    pairs: tuple[Pair, ...]
    """By lines, the largest gain first."""
    unneeded_edges: int
    """Edges between two nodes of which neither needs the other, as far as times tell."""
    more_bytes: int
    """Memory that the pool gives out anew in this graph while, with all of it overlapped, the
    first use would still be going on: it would need up to so much more. On top of it each stream
    that runs matmuls takes a cuBLAS workspace of its own."""
    guessed: int
    """Nodes outside any recorded op, judged by the pointers among their arguments."""
    barriers: int
    """Nodes that keep their place because nothing is known of what they touch."""
    unsized: int
    """Timed nodes that do not say how much of the device they fill; they count as filling
    nothing."""

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


def find(capture: Capture, graph: int) -> Overlap:
    """What overlapping could gain in ``capture.graphs[graph]``."""
    one = capture.graphs[graph]
    needs, edges = dependencies.find(capture, graph), waits(one)
    times, counts = durations(capture, one), weights(one)
    timed = any(times)
    now, _ = by_edges(one, times if timed else counts, edges)
    free = schedule(needs.order, times if timed else counts, needs.before)
    fills = [_fill(capture, node) for node in one.nodes]
    known = [0.0 if fill is None else fill for fill in fills]
    chain = longest(needs.order, counts, edges)
    found = Overlap(
        graph=graph,
        timed=timed,
        recorded=needs.recorded,
        length_ns=now.length if timed else 0,
        # The order inside one op call is taken from its nodes, and may be stricter than its edges.
        needed_ns=min(free.length, now.length) if timed else 0,
        work_ns=round(sum(time * fill for time, fill in zip(times, known, strict=True))),
        length_nodes=chain,
        needed_nodes=min(longest(needs.order, counts, needs.before), chain),
        pairs=(),
        unneeded_edges=sum(free.independent(edge.source, edge.target) for edge in one.edges),
        more_bytes=0,
        guessed=len(needs.guessed),
        barriers=len(needs.barriers),
        unsized=sum(fill is None and time > 0 for fill, time in zip(fills, times, strict=True)),
    )
    beside = list(pieces(free, needs.order, needs.before))
    if not beside:
        return found
    order = node_order(one, needs.order, edges)
    before = order.before if order is not None else now.ordered
    made = pairs(capture, one, beside, before, free, known, gain_ns=found.gain_ns, timed=timed)
    more = more_bytes(capture, one, free) if made else 0
    return msgspec.structs.replace(found, pairs=made, more_bytes=more)


def _fill(capture: Capture, node: Node) -> float | None:
    """The share of the device that the blocks of a kernel fill, at most 1."""
    waves = roofline.waves(capture, node)
    return None if waves is None else min(1.0, waves)


def sentence(capture: Capture, found: Overlap, pair: Pair) -> str:
    """``aten::mm at model.py:31 and aten::mm at model.py:33 are independent: 12 us of 80 us could
    run beside the others at most``; in nodes where no time is known."""
    nodes, places = capture.graphs[found.graph].nodes, Places(capture)
    one, other = (_words(places.of(nodes[node])) for node in (pair.one, pair.other))
    times = f", {pair.times} times" if pair.times > 1 else ""
    much = (
        f"{pair.gain_ns / 1e3:.1f} us of {found.length_ns / 1e3:.1f} us"
        if found.timed
        else f"{len(pair.nodes)} of {found.length_nodes} nodes"
    )
    return f"{one} and {other} are independent{times}: {much} could run beside the others at most"


def _words(place: Place) -> str:
    what = place.op or place.autograd_node or "a launch outside any op"
    at = file_line(place.line)
    module = f" ({place.module})" if place.module else ""
    return f"{what} at {at}{module}" if at else f"{what}{module}"


def look(capture: Capture, known: Iterable[Overlap] | None = None) -> tuple[Finding, ...]:
    """A finding for each captured graph in which overlapping could gain 10 % or more, by measured
    times. ``known`` is what ``find`` said of those graphs, where it was asked before."""
    if known is None:
        known = (
            find(capture, index)
            for index, graph in enumerate(capture.graphs)
            if graph.parent is None
        )
    return tuple(
        _finding(capture, found) for found in known if found.gain >= WORTH_SAYING and found.pairs
    )


def _finding(capture: Capture, found: Overlap) -> Finding:
    graph, first = capture.graphs[found.graph], found.pairs[0]
    node = graph.nodes[first.one]
    origin = None if node.origin is None else capture.origins[node.origin]
    forward = None if origin is None or origin.forward is None else capture.origins[origin.forward]
    frames, forward_frames = (
        tuple(capture.frames[index] for index in one.frames) if one is not None else ()
        for one in (origin, forward)
    )
    fix = "put one of the two on a stream of its own, and join it where its result is read"
    if forward is not None:
        fix = (
            "put independent branches of the forward on streams of their own: the backward of an "
            "op runs on the stream that the op ran on. What one op's backward launches stays in "
            "order"
        )
    return Finding(
        CONCURRENCY_LOST_OR_FALSE_DEPENDENCY,
        f"{graph.name}: work that needs nothing of each other runs in turn, "
        + ("kept in order by waits between streams" if first.across else "captured on one stream")
        + f": side by side it would gain at most {found.gain_ns / 1e3:.1f} us of "
        f"{found.length_ns / 1e3:.1f} us ({found.gain:.0%})",
        frames,
        module=origin.module if origin is not None else None,
        forward=forward_frames,
        phase=graph.phase,
        fix=None if first.across else fix,
        evidence=tuple(_evidence(capture, found)),
    )


def _evidence(capture: Capture, found: Overlap) -> Iterator[str]:
    yield (
        f"critical path {found.length_ns / 1e3:.1f} us; by the data {found.needed_ns / 1e3:.1f} us "
        f"would do, and the device is full for {found.work_ns / 1e3:.1f} us"
    )
    for pair in found.pairs[:_SHOWN]:
        yield sentence(capture, found, pair)
    if found.more_bytes:
        yield (
            f"it would need up to {found.more_bytes / 2**20:.2f} MiB more in the pool: memory that "
            "is given out anew would be in use at once"
        )
