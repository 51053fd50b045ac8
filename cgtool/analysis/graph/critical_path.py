"""The critical path: the chain of nodes that no replay can be shorter than."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cgtool.analysis.graph.schedule import Schedule, schedule
from cgtool.model.capture import Capture, Graph, Node, topological


class Path(msgspec.Struct, frozen=True):
    """The longest path through the edges of one graph. Gaps between nodes are no part of it."""

    graph: int
    """Index into ``Capture.graphs``."""
    nodes: tuple[int, ...]
    """Ids, in order. Where no node was timed, a path with the most nodes."""
    length_ns: int
    """Sum of its nodes' times, less what overlaps at programmatic edges."""
    replay_ns: int | None
    """One replay by the same clock: first start of a node to last end; None where no start was
    measured."""
    busy_ns: int
    """Sum of the times of all nodes."""
    slack_ns: tuple[int, ...]
    """By node id: how much longer it may take before this path gets longer."""
    width: int
    """So many nodes can run at once, at least: none of them waits for another."""
    untimed: int
    """Nodes whose time is not known and counts as 0; empty nodes do nothing and are not counted."""
    overlapping: int
    """Programmatic edges whose target started before the source had ended."""

    @property
    def timed(self) -> bool:
        """False when nothing is known of any node's time."""
        return self.busy_ns > 0

    @property
    def share(self) -> float | None:
        """Of the replay that lies on the path; the rest is gaps and work beside it."""
        return self.length_ns / self.replay_ns if self.replay_ns else None


def find(capture: Capture, graph: int) -> Path:
    """The critical path of ``capture.graphs[graph]``."""
    one = capture.graphs[graph]
    times = durations(capture, one)
    before = waits(one)
    laid, overlapping = by_edges(one, times if any(times) else weights(one), before)
    ends = [node.start_ns + times[node.id] for node in one.nodes if node.start_ns is not None]
    starts = [node.start_ns for node in one.nodes if node.start_ns is not None]
    timed = any(times)
    return Path(
        graph=graph,
        nodes=laid.path,
        length_ns=laid.length if timed else 0,
        replay_ns=max(ends) - min(starts) if ends else None,
        busy_ns=sum(times),
        slack_ns=tuple(laid.slack) if timed else (0,) * len(times),
        width=_width(one, before),
        untimed=sum(
            node.type != "empty" and node.duration_ns is None and not times[node.id]
            for node in one.nodes
        ),
        overlapping=overlapping,
    )


def durations(capture: Capture, graph: Graph) -> list[int]:
    """By node id: its time, 0 where none is known. A child node without a time of its own has that
    of the critical path of its body."""
    return [_duration(capture, node) for node in graph.nodes]


def _duration(capture: Capture, node: Node) -> int:
    if node.duration_ns is not None:
        return node.duration_ns
    if node.type == "child" and len(node.body) == 1:
        return find(capture, node.body[0]).length_ns
    return 0


def weights(graph: Graph) -> list[int]:
    """What stands for the durations where nothing was timed: 1 a node, 0 for empty ones."""
    return [int(node.type != "empty") for node in graph.nodes]


def waits(graph: Graph) -> list[Sequence[int]]:
    """By node id: what it waits for."""
    # Most wait for one node: a tuple is no work for the garbage collector.
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
    two count as started together.
    """
    nodes = graph.nodes
    lags: dict[tuple[int, int], int] = {}
    for edge in graph.edges:
        if edge.type == 1 or edge.from_port:
            first, second = nodes[edge.source].start_ns, nodes[edge.target].start_ns
            lag = 0 if first is None or second is None else max(0, second - first)
            if lag < times[edge.source]:
                lags[edge.source, edge.target] = lag
    for edge in graph.edges if lags else ():
        if edge.type == 0 and edge.from_port == 0:
            lags.pop((edge.source, edge.target), None)
    order = topological(len(nodes), graph.edges)
    assert order is not None, "a capture that was read has no cycles"
    return schedule(order, times, before, lags), len(lags)


def _width(graph: Graph, before: Sequence[Sequence[int]]) -> int:
    """A node can be in flight from its own level to just before the first level of those that wait
    for it; nodes that share a level so have no path between them."""
    nodes, edges = graph.nodes, graph.edges
    level = [0] * len(nodes)
    for node in topological(len(nodes), edges) or ():
        for source in before[node]:
            if level[source] >= level[node]:
                level[node] = level[source] + 1
    levels = max(level, default=-1) + 1
    end = [levels] * len(nodes)
    for edge in edges:
        end[edge.source] = min(end[edge.source], level[edge.target])
    change = [0] * (levels + 1)
    for one in nodes:
        if one.type != "empty":
            change[level[one.id]] += 1
            change[end[one.id]] -= 1
    widest = now = 0
    for difference in change:
        now += difference
        widest = max(widest, now)
    return widest
