"""Nodes that could run at the same time: those that the edges order although they are independent.

A capture on one stream is a chain, even if its ops do not depend on each other. Compared with what
the ops read and write, this says how much shorter a replay could be at most, which lines to put on
streams of their own, and the memory that it would cost.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from cgtool.analysis.graph.dependencies import find_dependencies
from cgtool.analysis.graph.places import Place, Places, file_line, frames_of
from cgtool.analysis.graph.reach import Reach
from cgtool.analysis.graph.schedule import (
    Schedule,
    by_edges,
    durations,
    longest,
    schedule,
    waits,
    weights,
)
from cgtool.analysis.timing import roofline
from cgtool.analysis.units import bytes_text, time_text
from cgtool.findings import code
from cgtool.model.capture import Capture, Graph
from cgtool.model.finding import Finding

CONCURRENCY_LOST_OR_FALSE_DEPENDENCY = code("concurrency-lost-or-false-dependency")

_WORTH_SAYING = 0.1
"""Share of the critical path from which a possible gain is a finding."""
_SHOWN = 5
"""Pairs of lines that a finding names."""


class IndependentPair(msgspec.Struct, frozen=True):
    """Two pieces of work that run one after the other although they are independent."""

    one: int
    """Id of the longest node of the piece that could move; the first if there are several."""
    other: int
    """Id of the nearest node that it could run at the same time as."""
    nodes: tuple[int, ...]
    """Ids of all nodes that could move, over all pieces with these two lines."""
    times: int
    """Number of pieces."""
    busy_ns: int
    """Time of the nodes that could move."""
    gain_ns: int
    """Upper bound on how much shorter the replay would be for these alone."""
    across: bool
    """They were captured on two streams, and a wait in the user's code orders them."""


class Overlap(msgspec.Struct, frozen=True):
    """The time that overlapping could gain in one graph. An upper bound: launching on several
    streams costs nodes that wait, and kernels that run at once take memory bandwidth from each
    other."""

    graph: int
    """Index into ``Capture.graphs``."""
    timed: bool
    """False if no node's time is known: then all times are 0, and only counts of nodes tell."""
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
    pairs: tuple[IndependentPair, ...]
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
        """A lower bound for every order of these nodes on this device."""
        return min(self.length_ns, max(self.needed_ns, self.work_ns))

    @property
    def gain_ns(self) -> int:
        """The most that overlapping could gain."""
        return self.length_ns - self.bound_ns

    @property
    def gain(self) -> float:
        """The gain as a share of the critical path."""
        return self.gain_ns / self.length_ns if self.length_ns else 0.0


def find_overlap(capture: Capture, index: int) -> Overlap:
    """Computes what overlapping could gain in ``capture.graphs[index]``."""
    graph = capture.graphs[index]
    needs, edges = find_dependencies(capture, index), waits(graph)
    times, counts = durations(capture, graph), weights(graph)
    timed = any(times)
    now, _ = by_edges(graph, times if timed else counts, edges)
    free = schedule(needs.order, times if timed else counts, needs.before)
    waves = [roofline.waves(capture, node) for node in graph.nodes]
    fills = [min(1.0, share or 0.0) for share in waves]
    chain = longest(needs.order, counts, edges)
    overlap = Overlap(
        graph=index,
        timed=timed,
        recorded=needs.recorded,
        length_ns=now.length if timed else 0,
        # The order inside one op call is taken from its nodes, and may be stricter than its edges.
        needed_ns=min(free.length, now.length) if timed else 0,
        work_ns=round(sum(time * fill for time, fill in zip(times, fills, strict=True))),
        length_nodes=chain,
        needed_nodes=min(longest(needs.order, counts, needs.before), chain),
        pairs=(),
        unneeded_edges=len(_unneeded(graph, free)),
        more_bytes=0,
        guessed=len(needs.guessed),
        barriers=len(needs.barriers),
        unsized=sum(share is None and time > 0 for share, time in zip(waves, times, strict=True)),
    )
    pieces = list(_pieces(free, needs.order, needs.before))
    if not pieces:
        return overlap
    pairs = _pairs(capture, overlap, pieces, free, fills, times)
    more = more_bytes(capture, graph, free) if pairs else 0
    return msgspec.structs.replace(overlap, pairs=pairs, more_bytes=more)


def unneeded_edges(capture: Capture, index: int) -> list[int]:
    """The positions of those edges of a graph that order two nodes which take time and do not
    depend on each other."""
    graph = capture.graphs[index]
    needs, times = find_dependencies(capture, index), durations(capture, graph)
    return _unneeded(
        graph, schedule(needs.order, times if any(times) else weights(graph), needs.before)
    )


def _unneeded(graph: Graph, free: Schedule) -> list[int]:
    return [at for at, edge in enumerate(graph.edges) if free.independent(edge.source, edge.target)]


class _Piece(NamedTuple):
    """A chain of nodes off the longest path: a node of the path comes before all of them, or after
    all of them, or could run at the same time."""

    nodes: Sequence[int]
    first: int
    """The part of the path that could run at the same time: from this position in it ..."""
    last: int
    """... to before this one."""


def _pieces(
    free: Schedule, order: Sequence[int], before: Sequence[Sequence[int]]
) -> Iterator[_Piece]:
    """All pieces off ``free.path``, which is the longest path by the dependencies of the data."""
    starts = [free.start[node] for node in free.path]
    ends = [free.end[node] for node in free.path]
    for nodes in _chains(order, before, frozenset(free.path)):
        earliest, latest = free.start[nodes[0]], free.end[nodes[-1]] + free.slack[nodes[-1]]
        first, last = bisect_right(ends, earliest), bisect_left(starts, latest)
        if first < last and any(free.durations[node] for node in nodes):
            yield _Piece(nodes, first, last)


def _chains(
    order: Sequence[int], before: Sequence[Sequence[int]], apart: frozenset[int]
) -> list[list[int]]:
    """The longest chains of nodes in which each waits only for the one before it; without the nodes
    in ``apart``."""
    waiting = [0] * len(order)
    for sources in before:
        for source in sources:
            waiting[source] += 1
    chains: list[list[int]] = []
    chain_of: dict[int, list[int]] = {}
    for node in order:
        if node in apart:
            continue
        sources = before[node]
        chain = chain_of.get(sources[0]) if len(sources) == 1 else None
        if chain is None or waiting[sources[0]] != 1:
            chain = []
            chains.append(chain)
        chain.append(node)
        chain_of[node] = chain
    return chains


def _pairs(
    capture: Capture,
    overlap: Overlap,
    pieces: Sequence[_Piece],
    free: Schedule,
    fills: Sequence[float],
    node_ns: Sequence[int],
) -> tuple[IndependentPair, ...]:
    """Pieces that edges put in order with nodes of the critical path, although the dependencies of
    the data (``free``) would let both run at the same time: one row for each pair of lines, the
    largest gain first.

    ``fills`` is the share of the device that each node fills. Where no node is timed, ``node_ns``
    is 0 throughout, and the times in ``free`` are 1.
    """
    graph, path, times = capture.graphs[overlap.graph], free.path, free.durations
    took = [0, *accumulate(times[node] for node in path)]
    room = [0.0, *accumulate(times[node] * (1 - fills[node]) for node in path)]
    places = Places(capture)

    def line(node: int) -> tuple[str | None, str]:
        place = places.of(graph.nodes[node])
        return place.op, file_line(place.line)

    def movable(piece: _Piece) -> tuple[int, int]:
        """Its longest node, and the node of its part of the path that was created nearest to it."""
        moved = max(piece.nodes, key=times.__getitem__)
        at = bisect_left(path, moved, piece.first, piece.last)
        around = path[max(piece.first, at - 1) : min(piece.last, at + 1)]
        return moved, min(around, key=lambda node: abs(node - moved))

    ends = list(map(movable, pieces))
    ordered = Reach(graph).connected([*ends, *((near, moved) for moved, near in ends)])
    groups: dict[tuple[object, object, bool], list[tuple[Sequence[int], int, int, float]]] = (
        defaultdict(list)
    )
    for (nodes, first, last), (moved, near) in zip(pieces, ends, strict=True):
        if (moved, near) not in ordered and (near, moved) not in ordered:
            continue
        # Together they take as long as the longer of the two, and as all their blocks.
        gain = min(
            sum(times[node] for node in nodes),
            took[last] - took[first],
            sum(times[node] * (1 - fills[node]) for node in nodes) + room[last] - room[first],
        )
        across = graph.nodes[moved].stream != graph.nodes[near].stream
        groups[line(moved), line(near), across].append((nodes, moved, near, gain))
    pairs: list[IndependentPair] = []
    for (_, _, across), members in groups.items():
        _, moved, near, _ = members[0]
        nodes = tuple(node for piece, *_ in members for node in piece)
        busy_ns = sum(node_ns[node] for node in nodes)
        gain_ns = min(round(sum(gain for *_, gain in members)), overlap.gain_ns)
        pairs.append(IndependentPair(moved, near, nodes, len(members), busy_ns, gain_ns, across))
    return tuple(sorted(pairs, key=lambda pair: (-pair.gain_ns, -pair.busy_ns, -len(pair.nodes))))


class _Use(NamedTuple):
    """When the nodes of a graph use an allocation, by the dependencies of the data."""

    first: int
    """Earliest start of any of them."""
    end: int
    """Earliest moment at which all have ended."""
    latest_first: int
    latest_end: int

    def over_before(self, other: _Use) -> bool:
        """Like ``Schedule.ordered``, for all of these nodes before all of those."""
        return self.end <= other.first and self.latest_end <= other.latest_first


def more_bytes(capture: Capture, graph: Graph, free: Schedule) -> int:
    """Bytes that are given to a second tensor while the nodes of the first could still run: so much
    more memory would the pool need, at most, to let them. 0 if kernels' arguments are not known.
    """
    users: dict[int, list[int]] = defaultdict(list)
    for node in graph.nodes:
        for pointer in node.kernel.pointers if node.kernel is not None else ():
            if pointer.allocation is not None:
                users[pointer.allocation].append(node.id)
    allocations = capture.memory.allocations
    # Ranges of memory: sorted starts, and by start the end and what last used it.
    starts: list[int] = []
    ranges: dict[int, tuple[int, _Use]] = {}
    more = 0
    for index in sorted(users, key=lambda index: allocations[index].allocated_at):
        nodes, low = users[index], allocations[index].address
        high = low + allocations[index].bytes
        use = _Use(
            min(free.start[node] for node in nodes),
            max(free.end[node] for node in nodes),
            min(free.start[node] + free.slack[node] for node in nodes),
            max(free.end[node] + free.slack[node] for node in nodes),
        )
        at = end = max(0, bisect_right(starts, low) - 1)
        left = [(low, high, use)]
        while end < len(starts) and starts[end] < high:
            start = starts[end]
            stop, earlier = ranges.pop(start)
            shared = min(stop, high) - max(start, low)
            if shared > 0 and not earlier.over_before(use):
                more += shared
            if start < low:
                left.append((start, min(stop, low), earlier))
            if stop > high:
                left.append((high, stop, earlier))
            end += 1
        left.sort(key=lambda span: span[0])
        starts[at:end] = [start for start, _, _ in left]
        ranges.update((start, (stop, owner)) for start, stop, owner in left)
    return more


def sentence(capture: Capture, overlap: Overlap, pair: IndependentPair) -> str:
    """``aten::mm at model.py:31 and aten::mm at model.py:33 are independent: running them at the
    same time would gain at most 12 us of 80 us``; in nodes where no time is known."""
    nodes, places = capture.graphs[overlap.graph].nodes, Places(capture)
    first, second = (_words(places.of(nodes[node])) for node in (pair.one, pair.other))
    times = f" ({pair.times} times)" if pair.times > 1 else ""
    gain = (
        f"{time_text(pair.gain_ns)} of {time_text(overlap.length_ns)}"
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


def overlap_findings(capture: Capture, overlaps: Iterable[Overlap]) -> tuple[Finding, ...]:
    """A finding for each graph in which overlapping could gain 10% or more, by measured times."""
    return tuple(
        _finding(capture, overlap)
        for overlap in overlaps
        if overlap.gain >= _WORTH_SAYING and overlap.pairs
    )


def _finding(capture: Capture, overlap: Overlap) -> Finding:
    graph, pair = capture.graphs[overlap.graph], overlap.pairs[0]
    index = graph.nodes[pair.one].origin
    origin = None if index is None else capture.origins[index]
    forward = None if origin is None else origin.forward
    fix = "put one of the two on a separate stream, and join it before its result is read"
    if forward is not None:
        fix = (
            "put independent branches of the forward on separate streams: the backward of an "
            "op runs on the stream of its forward"
        )
    return Finding(
        CONCURRENCY_LOST_OR_FALSE_DEPENDENCY,
        f"{graph.name} runs independent work sequentially, "
        + ("ordered by waits between streams" if pair.across else "captured on one stream")
        + f": running it at the same time would gain at most {time_text(overlap.gain_ns)} "
        f"of {time_text(overlap.length_ns)} ({overlap.gain:.0%})",
        frames_of(capture, index),
        module=origin.module if origin is not None else None,
        forward=frames_of(capture, forward),
        phase=graph.phase,
        fix=None if pair.across else fix,
        evidence=tuple(_evidence(capture, overlap)),
    )


def _evidence(capture: Capture, overlap: Overlap) -> Iterator[str]:
    yield (
        f"critical path {time_text(overlap.length_ns)}; {time_text(overlap.needed_ns)} if each "
        f"node waited only for its data; {time_text(overlap.work_ns)} if the nodes always filled "
        "the GPU"
    )
    for pair in overlap.pairs[:_SHOWN]:
        yield sentence(capture, overlap, pair)
    if overlap.more_bytes:
        yield (
            f"the pool would need up to {bytes_text(overlap.more_bytes)} more: memory that it "
            "reuses would be in use twice"
        )
