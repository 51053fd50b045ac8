"""The earliest and the latest moment of every node of a graph, from durations and what waits for
what: the critical path method. Linear in nodes and dependencies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """Of the whole, where nothing waits for anything but its dependencies."""
    path: tuple[int, ...]
    """One longest path, in order."""

    def ordered(self, one: int, other: int) -> bool:
        """False only when there is no path from ``one`` to ``other``: along a path it would end
        before the other starts, at the earliest and at the latest."""
        end, start = self.end[one], self.start[other]
        return end <= start and end + self.slack[one] <= start + self.slack[other]

    def independent(self, one: int, other: int) -> bool:
        """True only for two nodes that take time and of which neither waits for the other."""
        if self.ordered(one, other) or self.ordered(other, one):
            return False
        return self.durations[one] > 0 and self.durations[other] > 0


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
    slack = [length - one - rest for one, rest in zip(end, behind, strict=True)]
    path = _path(end, cause, length)
    return Schedule(durations, start, end, slack, length, path)


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


def _path(end: Sequence[int], cause: Sequence[int], length: int) -> tuple[int, ...]:
    node = end.index(length) if end else -1
    found: list[int] = []
    while node >= 0:
        found.append(node)
        node = cause[node]
    return tuple(reversed(found))
