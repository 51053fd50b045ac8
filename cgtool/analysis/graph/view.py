"""What of a graph is shown: some nodes, some groups of nodes, and what leads from one to another.

A view is true: there is a path between two shown nodes in the view exactly when there is one in
the graph (inside a group, the group stands for all of its nodes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cgtool.model.capture import Graph, topological


@dataclass(slots=True)
class Item:
    """One box of the picture: a node, a group of nodes, or a point where hidden paths meet."""

    members: list[int]
    """Node ids. Empty for a point."""
    title: str | None = None
    """What a group is called; None for a node."""
    module: str | None = None
    """The module that all of a group belongs to, when there is one."""

    @property
    def is_point(self) -> bool:
        return not self.members


@dataclass(slots=True)
class Link:
    """``target`` waits for ``source`` (positions in ``View.items``)."""

    source: int
    target: int
    hidden: bool = False
    """True for a path through nodes that are not shown."""
    programmatic: bool = False


@dataclass(slots=True)
class View:
    """One graph, as it is shown. Items stand in a topological order."""

    graph: int
    """Index into ``Capture.graphs``."""
    items: list[Item] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    node_count: int = 0
    """Nodes of the graph, shown or not."""


def whole(index: int, graph: Graph) -> View:
    """Every node and every edge."""
    order = _order(graph)
    position = [0] * len(order)
    for place, node in enumerate(order):
        position[node] = place
    links = [
        Link(position[edge.source], position[edge.target], False, edge.type == 1)
        for edge in graph.edges
    ]
    return View(index, [Item([node]) for node in order], links, len(order))


def only(index: int, graph: Graph, shown: Sequence[bool]) -> View:
    """The nodes where ``shown`` is true, and the paths between them.

    A path through hidden nodes becomes one link, marked ``hidden``. A hidden node with one way in
    or one way out is merged into its neighbour, which adds no link; where several paths meet and
    part again a point stands for the hidden nodes, because one link for each pair would be more
    links than the graph has edges. Linear but for the rounds, which are few.
    """
    if all(shown):
        return whole(index, graph)
    order = _order(graph)
    merged = _merge(order, _between(order, graph, shown), graph, shown)
    items: list[Item] = []
    position: dict[int, int] = {}
    for node in order:
        if merged[node] == node:
            position[node] = len(items)
            items.append(Item([node] if shown[node] else []))
    direct: dict[tuple[int, int], Link] = {}
    for edge in graph.edges:
        source, target = merged[edge.source], merged[edge.target]
        if source < 0 or target < 0 or source == target:
            continue
        hidden = not (shown[edge.source] and shown[edge.target])
        key = (position[source], position[target])
        known = direct.get(key)
        if known is None:
            direct[key] = Link(*key, hidden, edge.type == 1 and not hidden)
        elif not hidden:
            known.hidden, known.programmatic = False, edge.type == 1
    return View(index, items, list(direct.values()), len(order))


def _order(graph: Graph) -> list[int]:
    order = topological(len(graph.nodes), graph.edges)
    if order is None:
        raise ValueError(f"{graph.name}: its edges make a cycle")
    return order


def _between(order: list[int], graph: Graph, shown: Sequence[bool]) -> list[bool]:
    """Which nodes are shown, or lie on a path from one shown node to another."""
    after: list[list[int]] = [[] for _ in order]
    for edge in graph.edges:
        after[edge.source].append(edge.target)
    leads_from = list(shown)
    leads_to = list(shown)
    for node in order:
        if leads_from[node]:
            for target in after[node]:
                leads_from[target] = True
    for node in reversed(order):
        if not leads_to[node]:
            leads_to[node] = any(leads_to[target] for target in after[node])
    return [a and b for a, b in zip(leads_from, leads_to, strict=True)]


def _merge(order: list[int], between: list[bool], graph: Graph, shown: Sequence[bool]) -> list[int]:
    """For each node, the node that stands for it: itself, a neighbour, or -1 for none.

    Merging a node into its only successor or its only predecessor changes no path between the
    others, nor does merging two nodes with the same successors or the same predecessors. One can
    make room for the next, so all are repeated until nothing changes.
    """
    stands = [node if live else -1 for node, live in enumerate(between)]
    hidden = [node for node in order if between[node] and not shown[node]]
    pairs = {
        (edge.source, edge.target)
        for edge in graph.edges
        if between[edge.source] and between[edge.target]
    }
    while hidden:
        count = len(hidden)
        for forward in (False, True):
            neighbours: dict[int, set[int]] = {}
            for source, target in pairs:
                node, other = (target, source) if forward else (source, target)
                if not shown[node]:
                    neighbours.setdefault(node, set()).add(other)
            into: dict[int, int] = {}
            twins: dict[frozenset[int], int] = {}
            for node in hidden if forward else reversed(hidden):
                ends = frozenset(into.get(other, other) for other in neighbours.get(node, ()))
                if len(ends) == 1:
                    (into[node],) = ends
                elif (twin := twins.setdefault(ends, node)) != node:
                    into[node] = twin
            hidden = [node for node in hidden if node not in into]
            stands = [into.get(node, node) for node in stands]
            moved = ((into.get(a, a), into.get(b, b)) for a, b in pairs)
            pairs = {pair for pair in moved if pair[0] != pair[1]}
        if len(hidden) == count:
            break
    return stands
