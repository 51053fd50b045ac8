"""Pieces of a graph that could run at the same time as its longest path, the lines that they come
from, and the memory that it would cost."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from cgtool.analysis.graph.places import Places, file_line
from cgtool.analysis.graph.schedule import Schedule
from cgtool.model.capture import Capture, Graph


class Pair(msgspec.Struct, frozen=True):
    """Two pieces of work that run one after the other although they are independent."""

    one: int
    """Id of the longest node of the piece that could move, where there are several the first."""
    other: int
    """Id of the nearest node that it could run at the same time as."""
    nodes: tuple[int, ...]
    """Ids of all nodes that could move, of all pieces with these two lines."""
    times: int
    """So many pieces."""
    busy_ns: int
    """Time of the nodes that could move."""
    gain_ns: int
    """At most so much shorter would the replay be for these alone."""
    across: bool
    """They were captured on two streams: a wait of the user's code orders them."""


class Piece(msgspec.Struct, frozen=True):
    """A chain of nodes off the longest path: a node of the path comes before all of them, or after
    all of them, or could run at the same time."""

    nodes: tuple[int, ...]
    first: int
    """The part of the path that could run at the same time: from this position in it ..."""
    last: int
    """... to before this one."""


def pieces(
    free: Schedule, order: Sequence[int], before: Sequence[Sequence[int]]
) -> Iterator[Piece]:
    """All pieces off ``free.path``, which is the longest path by the dependencies of the data."""
    path = free.path
    starts = [free.start[node] for node in path]
    ends = [free.end[node] for node in path]
    for nodes in _chains(order, before, frozenset(path)):
        earliest, latest = free.start[nodes[0]], free.end[nodes[-1]] + free.slack[nodes[-1]]
        first, last = bisect_right(ends, earliest), bisect_left(starts, latest)
        if first < last and any(free.durations[node] for node in nodes):
            yield Piece(nodes, first, last)


def _chains(
    order: Sequence[int], before: Sequence[Sequence[int]], apart: frozenset[int]
) -> Iterator[tuple[int, ...]]:
    """The longest chains of nodes in which each waits only for the one before it; without the nodes
    in ``apart``."""
    waiting = [0] * len(order)
    for sources in before:
        for source in sources:
            waiting[source] += 1
    chain_of: dict[int, list[int]] = {}
    for node in order:
        if node in apart:
            continue
        sources = before[node]
        chain = chain_of.get(sources[0]) if len(sources) == 1 else None
        if chain is None or waiting[sources[0]] != 1:
            chain = []
        chain.append(node)
        chain_of[node] = chain
    seen: set[int] = set()
    for chain in chain_of.values():
        if id(chain) not in seen:
            seen.add(id(chain))
            yield tuple(chain)


@dataclass
class _Row:
    """A pair as it grows."""

    one: int
    other: int
    across: bool
    nodes: list[int] = field(default_factory=list)
    times: int = 0
    gain: float = 0.0


def pairs(
    capture: Capture,
    graph: Graph,
    movable: Iterable[Piece],
    before: Callable[[int, int], bool],
    free: Schedule,
    fills: Sequence[float],
    *,
    gain_ns: int,
    timed: bool,
) -> tuple[Pair, ...]:
    """The pieces that the edges order (``before``), with the nodes that they could run at the same
    time as by the dependencies of the data (``free``), by lines, the largest gain first.

    ``fills`` is the share of the device that each node fills; ``gain_ns`` is what all pieces
    together can gain at most; not ``timed``: all times are 1.
    """
    path, times = free.path, free.durations
    took = [0, *accumulate(times[node] for node in path)]
    room = [0.0, *accumulate(times[node] * (1 - fills[node]) for node in path)]
    places = Places(capture)

    lines: dict[int | None, tuple[str | None, str]] = {}

    def line(node: int) -> tuple[str | None, str]:
        origin = graph.nodes[node].origin
        if origin not in lines:
            at = places.of_origin(origin)
            lines[origin] = at.op, file_line(at.line)
        return lines[origin]

    rows: dict[object, _Row] = {}
    for piece in movable:
        moved = max(piece.nodes, key=times.__getitem__)
        near = _nearest(path, piece, moved)
        if not before(moved, near) and not before(near, moved):
            continue
        across = graph.nodes[moved].stream != graph.nodes[near].stream
        row = rows.setdefault((line(moved), line(near), across), _Row(moved, near, across))
        row.nodes += piece.nodes
        row.times += 1
        # Together they take as long as the longer of the two, and as all their blocks.
        row.gain += min(
            sum(times[node] for node in piece.nodes),
            took[piece.last] - took[piece.first],
            sum(times[node] * (1 - fills[node]) for node in piece.nodes)
            + room[piece.last]
            - room[piece.first],
        )
    result = [
        Pair(
            row.one,
            row.other,
            tuple(row.nodes),
            row.times,
            sum(times[node] for node in row.nodes) if timed else 0,
            min(round(row.gain), gain_ns),
            row.across,
        )
        for row in rows.values()
    ]
    return tuple(sorted(result, key=lambda pair: (-pair.gain_ns, -pair.busy_ns, -len(pair.nodes))))


def _nearest(path: Sequence[int], piece: Piece, node: int) -> int:
    """The node of that part of the path that was created nearest to ``node``."""
    at = bisect_left(path, node, piece.first, piece.last)
    around = path[max(piece.first, at - 1) : min(piece.last, at + 1)]
    return min(around, key=lambda candidate: abs(candidate - node))


@dataclass(slots=True)
class _Use:
    """When the nodes of a graph use an allocation, by the dependencies of the data."""

    first: int
    """Earliest start of any of them."""
    end: int
    """Earliest moment at which all have ended."""
    latest_first: int
    latest_end: int

    def over_before(self, other: _Use) -> bool:
        """As ``Schedule.ordered``, for all of these nodes before all of those."""
        return self.end <= other.first and self.latest_end <= other.latest_first


def more_bytes(capture: Capture, graph: Graph, free: Schedule) -> int:
    """Bytes that are given to a second tensor while the nodes of the first could still run: so much
    more memory would the pool need, at most, to let them. 0 where kernels' arguments are not known.
    """
    uses = _uses(graph, free)
    allocations = capture.memory.allocations
    # Ranges of memory: sorted starts, and by start the end and what last used it.
    starts: list[int] = []
    ranges: dict[int, tuple[int, _Use]] = {}
    more = 0
    for index in sorted(uses, key=lambda index: allocations[index].allocated_at):
        use, low = uses[index], allocations[index].address
        high = low + allocations[index].bytes
        same = ranges.get(low)
        if same is not None and same[0] == high:
            # Most blocks are given out again as they are.
            more += 0 if same[1].over_before(use) else high - low
            ranges[low] = high, use
            continue
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


def _uses(graph: Graph, free: Schedule) -> dict[int, _Use]:
    uses: dict[int, _Use] = {}
    for node in graph.nodes:
        start, end, slack = free.start[node.id], free.end[node.id], free.slack[node.id]
        for pointer in node.kernel.pointers if node.kernel is not None else ():
            if pointer.allocation is None:
                continue
            use = uses.get(pointer.allocation)
            if use is None:
                uses[pointer.allocation] = _Use(start, end, start + slack, end + slack)
                continue
            if start < use.first:
                use.first = start
            if end > use.end:
                use.end = end
            if start + slack < use.latest_first:
                use.latest_first = start + slack
            if end + slack > use.latest_end:
                use.latest_end = end + slack
    return uses
