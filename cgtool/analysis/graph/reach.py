"""Which nodes of a graph run before which: whether a path of edges leads from one to the other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from cgtool.analysis.graph.schedule import in_order, longest, waits, weights
from cgtool.model.capture import Graph

_BITS = 1024
"""Nodes that are followed at once."""


class Reach:
    """The paths of a graph. Each answer is linear in edges, for each thousand nodes."""

    def __init__(self, graph: Graph) -> None:
        self._order, self._before = in_order(graph), waits(graph)
        self.depth = longest(self._order, weights(graph), self._before)
        """Nodes on the longest path, without empty ones."""

    def waits(self, later: Sequence[int], earlier: Sequence[int]) -> list[bool]:
        """For each node of ``later``: whether there is a path to it from one of ``earlier``."""
        above = self._paths(dict.fromkeys(earlier, 1))
        return [above[node] > 0 for node in later]

    def may_overlap(self, nodes: Sequence[int], others: Sequence[int]) -> list[bool]:
        """For each of ``nodes``: whether no path leads to it from one of ``others``, nor back."""
        answers = [False] * len(nodes)
        for part in _parts(others):
            above, below = self._paths(part), self._paths(part, back=True)
            for at, node in enumerate(nodes):
                ordered = above[node] | below[node] | part.get(node, 0)
                answers[at] |= ordered.bit_count() < len(part)
        return answers

    def connected(self, pairs: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
        """The pairs that have a path from the first node to the second."""
        found: set[tuple[int, int]] = set()
        for part in _parts(sorted({first for first, _ in pairs})):
            above = self._paths(part)
            found |= {(a, b) for a, b in pairs if above[b] & part.get(a, 0)}
        return found

    def _paths(self, part: Mapping[int, int], *, back: bool = False) -> list[int]:
        """By node, as bits: those of ``part`` that have a path to it, or ``back`` from it."""
        masks = [0] * len(self._order)
        for node in reversed(self._order) if back else self._order:
            for source in self._before[node]:
                a, b = (node, source) if back else (source, node)
                masks[b] |= masks[a] | part.get(a, 0)
        return masks


def _parts(nodes: Sequence[int]) -> Iterator[dict[int, int]]:
    """A bit for each node, of so many at once."""
    for at in range(0, len(nodes), _BITS):
        yield {node: 1 << bit for bit, node in enumerate(nodes[at : at + _BITS])}
