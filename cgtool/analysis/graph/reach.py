"""Which nodes of a graph come before which, answered at once for any two.

Each node belongs to a chain of nodes that follow one another, its stream's where the edges keep
that stream in order, and remembers how far along every chain what comes before it reaches: a
vector clock (Fidge 1988, Mattern 1989). Linear in nodes while chains are few, as in what streams
captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cgtool.model.capture import Graph

_CHAINS = 64
"""Past this the clocks would cost more than the answer is worth."""


@dataclass(frozen=True)
class Reach:
    """The order of one graph's nodes."""

    chain: list[int]
    position: list[int]
    """In its chain."""
    clocks: list[list[int]]
    """By node, for every chain but its own: the last position there that comes before it."""

    def before(self, one: int, other: int) -> bool:
        """True when there is a path from ``one`` to ``other``."""
        chain, clock = self.chain[one], self.clocks[other]
        if chain == self.chain[other]:
            return self.position[one] < self.position[other]
        return chain < len(clock) and clock[chain] >= self.position[one]


def find(graph: Graph, order: Sequence[int], before: Sequence[Sequence[int]]) -> Reach | None:
    """``order`` is a topological order, ``before`` what each node waits for. None for a graph that
    takes more than 64 chains."""
    chain, position = [0] * len(order), [0] * len(order)
    clocks: list[list[int]] = [[]] * len(order)
    ends: list[int] = []
    of_stream: dict[int | None, list[int]] = {}
    for node in order:
        sources, stream = before[node], graph.nodes[node].stream
        clock = clocks[sources[0]] if len(sources) == 1 else _latest(sources, clocks)
        # The chain of the stream whose end is right before this node goes on here.
        known = of_stream.setdefault(stream, [])
        ends_before = (chain[one] for one in sources if position[one] == ends[chain[one]])
        own = next((one for one in ends_before if one in known), None)
        if len(sources) > 1 or (sources and own is None):
            clock = [*clock, *[-1] * (len(ends) - len(clock))]
            for one in sources:
                clock[chain[one]] = max(clock[chain[one]], position[one])
            if own is None:
                own = next((one for one in known if clock[one] == ends[one]), None)
        if own is None:
            if len(ends) == _CHAINS:
                return None
            own = len(ends)
            ends.append(-1)
            known.append(own)
        ends[own] += 1
        chain[node], position[node], clocks[node] = own, ends[own], clock
    return Reach(chain, position, clocks)


def _latest(nodes: Sequence[int], clocks: Sequence[list[int]]) -> list[int]:
    found: list[int] = []
    for node in nodes:
        clock = clocks[node]
        shorter, longer = sorted((found, clock), key=len)
        found = [*map(max, shorter, longer), *longer[len(shorter) :]]
    return found
