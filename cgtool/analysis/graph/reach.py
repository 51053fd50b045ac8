"""Which nodes of a graph run before which, those of its bodies included.

A node is known by its place: its id, and behind those of the graph the nodes of one body after
another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from cgtool.analysis.graph.schedule import connected, in_order, longest, waits, weights
from cgtool.model.capture import Capture, Edge, Graph, Node

_BITS = 1024
"""Nodes that are followed at once."""


class Reach:
    """The paths of one graph. Each answer is linear in edges, for each thousand nodes."""

    def __init__(self, capture: Capture, index: int) -> None:
        indices = [index]
        first: dict[int, int] = {}
        nodes: list[Node] = []
        for at in indices:  # grows
            first[at] = len(nodes)
            nodes += capture.graphs[at].nodes
            indices += (body for node in capture.graphs[at].nodes for body in node.body)
        self.graphs = indices
        """Indices of the graph and of its bodies, in the order of places."""
        self.edges: list[Edge] = []
        """Between places; those from and to the bodies have no data."""
        for at in indices:
            start, graph = first[at], capture.graphs[at]
            edges = [
                Edge(start + edge.source, start + edge.target, edge.from_port, type=edge.type)
                for edge in graph.edges
            ]
            self.edges += edges
            for node in graph.nodes:
                for body in node.body:
                    # What waits for the node waits for the end of its body, an empty node.
                    whole, end = start + node.id, len(nodes)
                    nodes.append(Node(end, "empty"))
                    inner = range(first[body], first[body] + len(capture.graphs[body].nodes))
                    self.edges += (Edge(whole, place) for place in inner)
                    self.edges += (Edge(place, end) for place in inner)
                    self.edges += (Edge(end, edge.target) for edge in edges if edge.source == whole)
        flat = Graph("", "", nodes=tuple(nodes), edges=tuple(self.edges))
        self._order, self._before = in_order(flat), waits(flat)
        self.depth = longest(self._order, weights(flat), self._before)
        """Nodes on the longest path, without empty ones."""

    def waits(self, later: Sequence[int], earlier: Sequence[int], *, every: bool) -> list[bool]:
        """For each place of ``later``: whether there is a path to it from at least one place of
        ``earlier``, or from every one."""
        answers = [every] * len(later)
        for part in _parts(earlier):
            above = self._above(part)
            for at, place in enumerate(later):
                if every:
                    answers[at] &= above[place].bit_count() == len(part)
                else:
                    answers[at] |= above[place] > 0
        return answers

    def may_overlap(self, places: Sequence[int], others: Sequence[int]) -> list[bool]:
        """For each of ``places``: whether no path leads to it from one of ``others``, nor back."""
        answers = [False] * len(places)
        for part in _parts(others):
            above, below = self._above(part), self._below(part)
            for at, place in enumerate(places):
                ordered = above[place] | below[place] | part.get(place, 0)
                answers[at] |= ordered.bit_count() < len(part)
        return answers

    def _above(self, part: Mapping[int, int]) -> list[int]:
        """By place, as bits: those of ``part`` that have a path to it."""
        masks = [0] * len(self._order)
        for place in self._order:
            for source in self._before[place]:
                masks[place] |= masks[source] | part.get(source, 0)
        return masks

    def _below(self, part: Mapping[int, int]) -> list[int]:
        """By place, as bits: those of ``part`` that it has a path to."""
        masks = [0] * len(self._order)
        for place in reversed(self._order):
            mask = masks[place] | part.get(place, 0)
            for source in self._before[place]:
                masks[source] |= mask
        return masks

    def gaps(self, places: Iterable[int]) -> list[tuple[int, int]]:
        """Neighbors in a topological order of ``places`` without a path from one to the next."""
        position = {place: at for at, place in enumerate(self._order)}
        pairs = list(pairwise(sorted(places, key=position.__getitem__)))
        found = connected(self._order, self._before, pairs)
        return [pair for pair in pairs if pair not in found]


def _parts(places: Sequence[int]) -> Iterator[dict[int, int]]:
    """A bit for each place, of so many at once."""
    for at in range(0, len(places), _BITS):
        yield {place: 1 << bit for bit, place in enumerate(places[at : at + _BITS])}
