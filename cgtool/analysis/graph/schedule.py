"""When the nodes of a graph can run: the critical path method, and which node comes before which.

Everything here is linear in nodes and dependencies, ``Order`` also in the chains of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import msgspec

from cgtool.model.capture import Capture, Edge, Graph, topological

Lags = Mapping[tuple[int, int], int]
"""(source, target) of a dependency that overlaps, to how long after the source's start the target
may start."""


@dataclass(frozen=True)
class Schedule:
    """Times in the unit of the durations, from the start of the graph."""

    durations: Sequence[int]
    start: list[int]
    """Earliest start."""
    end: list[int]
    """Earliest end."""
    slack: list[int]
    """How much longer a node may take before the whole takes longer; how much later it may end."""
    length: int
    """Length of the whole graph if nodes wait only for their dependencies."""
    path: tuple[int, ...]
    """One longest path, in order."""

    def ordered(self, first: int, second: int) -> bool:
        """False only when there is no path from ``first`` to ``second``: along a path the first
        would end before the second starts, at the earliest and at the latest."""
        end, start = self.end[first], self.start[second]
        return end <= start and end + self.slack[first] <= start + self.slack[second]

    def independent(self, first: int, second: int) -> bool:
        """True only for two nodes that take time, neither of which waits for the other."""
        if self.ordered(first, second) or self.ordered(second, first):
            return False
        return self.durations[first] > 0 and self.durations[second] > 0


def in_order(graph: Graph) -> list[int]:
    """The ids of its nodes, each after those that it waits for."""
    order = topological(len(graph.nodes), graph.edges)
    assert order is not None, "a capture that was read has no cycles"
    return order


def schedule(
    order: Sequence[int],
    durations: Sequence[int],
    before: Sequence[Sequence[int]],
    lags: Lags | None = None,
) -> Schedule:
    """``order`` is a topological order of all nodes; ``before[node]`` is what it waits for."""
    count = len(order)
    start, end, cause = [0] * count, [0] * count, [-1] * count
    for node in order:
        latest = 0
        for source in before[node]:
            ready = end[source]
            if lags and (source, node) in lags:
                ready = start[source] + lags[source, node]
            # Of equals, the first.
            if ready > latest or (ready == latest and cause[node] < 0):
                latest, cause[node] = ready, source
        start[node], end[node] = latest, latest + durations[node]
    length = max(end, default=0)
    # From the start of a node, and from its end, to the end of everything that waits for it.
    tail, behind = list(durations), [0] * count
    for node in reversed(order):
        own = durations[node] + behind[node]
        if own < tail[node]:
            own = tail[node]
        for source in before[node]:
            if lags and (source, node) in lags:
                tail[source] = max(tail[source], lags[source, node] + own)
            elif own > behind[source]:
                behind[source] = own
    slack = [length - finish - rest for finish, rest in zip(end, behind, strict=True)]
    path: list[int] = []
    node = end.index(length) if end else -1
    while node >= 0:
        path.append(node)
        node = cause[node]
    return Schedule(durations, start, end, slack, length, tuple(reversed(path)))


def longest(order: Sequence[int], durations: Sequence[int], before: Sequence[Sequence[int]]) -> int:
    """The length alone."""
    end = [0] * len(order)
    for node in order:
        latest = 0
        for source in before[node]:
            if end[source] > latest:
                latest = end[source]
        end[node] = latest + durations[node]
    return max(end, default=0)


class CriticalPath(msgspec.Struct, frozen=True):
    """The longest path through the edges of one graph. It does not include gaps between nodes."""

    graph: int
    """Index into ``Capture.graphs``."""
    nodes: tuple[int, ...]
    """Ids, in order. Where no node was timed, a path with the most nodes."""
    length_ns: int
    """Sum of its nodes' times, less what overlaps at programmatic edges."""
    replay_ns: int | None
    """One replay by the same clock: first start of a node to last end; None if no start was
    measured."""
    busy_ns: int
    """Sum of the times of all nodes."""
    slack_ns: tuple[int, ...]
    """By node id: how much longer it may take before this path gets longer."""
    width: int
    """Lower bound on the number of nodes that can run at once: none waits for another."""
    untimed: int
    """Nodes whose time is not known and counts as 0; empty nodes do nothing and are not counted."""
    overlapping: int
    """Programmatic edges whose target started before the source had ended."""

    @property
    def timed(self) -> bool:
        """False if no node's time is known."""
        return self.busy_ns > 0


def critical_path(capture: Capture, index: int) -> CriticalPath:
    """The critical path of ``capture.graphs[index]``."""
    graph = capture.graphs[index]
    times = durations(capture, graph)
    before = waits(graph)
    laid, overlapping = by_edges(graph, times if any(times) else weights(graph), before)
    ends = [node.start_ns + times[node.id] for node in graph.nodes if node.start_ns is not None]
    starts = [node.start_ns for node in graph.nodes if node.start_ns is not None]
    timed = any(times)
    return CriticalPath(
        graph=index,
        nodes=laid.path,
        length_ns=laid.length if timed else 0,
        replay_ns=max(ends) - min(starts) if ends else None,
        busy_ns=sum(times),
        slack_ns=tuple(laid.slack) if timed else (0,) * len(times),
        width=_width(graph, before),
        untimed=sum(
            node.type != "empty" and node.duration_ns is None and not times[node.id]
            for node in graph.nodes
        ),
        overlapping=overlapping,
    )


def durations(capture: Capture, graph: Graph) -> list[int]:
    """By node id: its time, 0 if none is known. A child node without a time of its own has that
    of the critical path of its body."""
    times = [node.duration_ns or 0 for node in graph.nodes]
    for node in graph.nodes:
        if node.duration_ns is None and node.type == "child" and len(node.body) == 1:
            times[node.id] = critical_path(capture, node.body[0]).length_ns
    return times


def weights(graph: Graph) -> list[int]:
    """Used as durations where nothing was timed: 1 for a node, 0 for an empty one."""
    return [int(node.type != "empty") for node in graph.nodes]


def waits(graph: Graph) -> list[Sequence[int]]:
    """By node id: what it waits for."""
    # Most wait for a single node: the garbage collector does not track such a tuple.
    before: list[tuple[int, ...] | list[int]] = [()] * len(graph.nodes)
    for edge in graph.edges:
        known = before[edge.target]
        if isinstance(known, list):
            known.append(edge.source)
        else:
            before[edge.target] = [*known, edge.source] if known else (edge.source,)
    return list(before)


def by_edges(
    graph: Graph, times: Sequence[int], before: Sequence[Sequence[int]]
) -> tuple[Schedule, int]:
    """The schedule that the edges allow, and how many programmatic edges overlap.

    The target of a programmatic edge may start while its source runs (CUDA programming guide,
    programmatic dependent launch). How much later it started was measured; where it was not, the
    two count as started together. In a graph without any times, none overlaps.
    """
    nodes = graph.nodes
    lags: dict[tuple[int, int], int] = {}
    for edge in graph.edges if any(node.duration_ns for node in nodes) else ():
        if edge.type == 1 or edge.from_port:
            first, second = nodes[edge.source].start_ns, nodes[edge.target].start_ns
            lag = 0 if first is None or second is None else max(0, second - first)
            if lag < times[edge.source]:
                lags[edge.source, edge.target] = lag
    for edge in graph.edges if lags else ():
        if edge.type == 0 and edge.from_port == 0:
            lags.pop((edge.source, edge.target), None)
    return schedule(in_order(graph), times, before, lags), len(lags)


def _width(graph: Graph, before: Sequence[Sequence[int]]) -> int:
    """A node can be in flight from its own level to just before the first level of those that wait
    for it; nodes that share a level so have no path between them."""
    nodes, edges = graph.nodes, graph.edges
    level = [0] * len(nodes)
    for node in in_order(graph):
        for source in before[node]:
            if level[source] >= level[node]:
                level[node] = level[source] + 1
    levels = max(level, default=-1) + 1
    end = [levels] * len(nodes)
    for edge in edges:
        end[edge.source] = min(end[edge.source], level[edge.target])
    change = [0] * (levels + 1)
    for index, node_level in enumerate(level):
        if nodes[index].type != "empty":
            change[node_level] += 1
            change[end[index]] -= 1
    return max(accumulate(change))


_MOST_CHAINS = 64
"""A graph that is wider is not ordered: the time grows with nodes times chains."""


class Order:
    """The order that the edges of a graph force.

    The graph is cut into chains. Each node has a clock: by chain, how many of its nodes run before.
    """

    def __init__(self, count: int, edges: Sequence[Edge]) -> None:
        sources: list[list[int]] = [[] for _ in range(count)]
        for edge in edges:
            sources[edge.target].append(edge.source)
        self._chain = [0] * count
        self._clocks: list[tuple[int, ...]] = [()] * count
        lengths: list[int] = []
        last: list[int] = []
        for node in topological(count, edges) or ():
            before = [0] * len(lengths)
            for source in sources[node]:
                for chain, length in enumerate(self._clocks[source]):
                    before[chain] = max(before[chain], length)
            ends = [
                chain for source in sources[node] if last[chain := self._chain[source]] == source
            ]
            if ends:
                chain = ends[0]
            else:
                chain = len(lengths)
                lengths.append(0)
                if chain == _MOST_CHAINS:
                    break
                last.append(node)
                before.append(0)
            lengths[chain] += 1
            last[chain] = node
            before[chain] = lengths[chain]
            self._chain[node] = chain
            self._clocks[node] = tuple(before)
        self._known = len(lengths) <= _MOST_CHAINS
        self.is_chain = count == 0 or len(lengths) == 1
        """Every node runs after all those before it."""

    def before(self, first: int, second: int) -> bool:
        """Whether ``second`` always begins after ``first`` did."""
        if not self._known or first == second:
            return False
        chain = self._chain[first]
        clock = self._clocks[second]
        return chain < len(clock) and clock[chain] >= self._clocks[first][chain]

    def is_sequence(self, nodes: Sequence[int]) -> bool:
        """Whether each of the nodes runs after the one before it."""
        return all(self.before(first, second) for first, second in pairwise(nodes))
