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
    slack: list[int]
    """How much longer a node may take before the whole takes longer."""
    length: int
    """Of the whole, where nothing waits for anything but its dependencies."""
    path: tuple[int, ...]
    """One longest path, in order."""

    def window(self, node: int) -> tuple[int, int]:
        """Earliest start and latest end. Two nodes whose windows overlap have no path between
        them: a node that another one waits for must end before that one may start."""
        start = self.start[node]
        return start, start + self.durations[node] + self.slack[node]


def schedule(
    order: Sequence[int],
    durations: Sequence[int],
    before: Sequence[Sequence[int]],
    lags: Lags | None = None,
) -> Schedule:
    """``order`` is a topological order of all nodes; ``before[node]`` is what it waits for."""
    count = len(order)
    start = [0] * count
    cause = [-1] * count
    for node in order:
        latest = 0
        for source in before[node]:
            ready = start[source]
            ready += lags.get((source, node), durations[source]) if lags else durations[source]
            # Of equals, the first.
            if ready > latest or (ready == latest and cause[node] < 0):
                latest, cause[node] = ready, source
        start[node] = latest
    length = max((start[node] + durations[node] for node in order), default=0)
    tail = list(durations)
    behind = [0] * count
    for node in reversed(order):
        own = max(tail[node], durations[node] + behind[node])
        tail[node] = own
        for source in before[node]:
            lag = lags.get((source, node)) if lags else None
            if lag is None:
                behind[source] = max(behind[source], own)
            else:
                tail[source] = max(tail[source], lag + own)
    slack = [length - start[node] - durations[node] - behind[node] for node in range(count)]
    return Schedule(durations, start, slack, length, _path(start, durations, cause, length))


def _path(
    start: Sequence[int], durations: Sequence[int], cause: Sequence[int], length: int
) -> tuple[int, ...]:
    ends = (node for node in range(len(start)) if start[node] + durations[node] == length)
    node = next(ends, -1)
    found: list[int] = []
    while node >= 0:
        found.append(node)
        node = cause[node]
    return tuple(reversed(found))
