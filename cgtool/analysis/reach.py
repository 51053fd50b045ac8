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
    clocks: list[list[int]]

    def before(self, one: int, other: int) -> bool:
        """True when there is a path from ``one`` to ``other``."""
        chain, clock = self.chain[one], self.clocks[other]
        return one != other and chain < len(clock) and clock[chain] >= self.position[one]


def find(graph: Graph, order: Sequence[int], before: Sequence[Sequence[int]]) -> Reach | None:
    """``order`` is a topological order, ``before`` what each node waits for. None for a graph that
    takes more than 64 chains."""
    chain, position = [0] * len(order), [0] * len(order)
    clocks: list[list[int]] = [[] for _ in order]
    ends: list[int] = []
    of_stream: dict[int | None, list[int]] = {}
    for node in order:
        clock: list[int] = []
        for source in before[node]:
            clock = _later(clock, clocks[source])
        known = of_stream.setdefault(graph.nodes[node].stream, [])
        # The end of the chain is behind this node: it goes on here.
        own = next((one for one in known if one < len(clock) and clock[one] == ends[one]), None)
        if own is None:
            if len(ends) == _CHAINS:
                return None
            own = len(ends)
            ends.append(-1)
            known.append(own)
        ends[own] += 1
        clock = clock + [-1] * (own + 1 - len(clock))
        clock[own] = ends[own]
        chain[node], position[node], clocks[node] = own, ends[own], clock
    return Reach(chain, position, clocks)


def _later(one: list[int], other: list[int]) -> list[int]:
    if not one:
        return other
    shorter, longer = sorted((one, other), key=len)
    return [*map(max, shorter, longer), *longer[len(shorter) :]]
