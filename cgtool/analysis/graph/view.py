"""The part of a graph that is shown: nodes, groups of nodes, and the links between them.

A view has a path between two shown nodes exactly when the graph has one (a group counts as all of
its nodes).

Grouping all nodes of a module can make two groups wait for each other, which the graph never does.
So a node joins the last group of its kind only when no other group is between them, and else begins
a new one: the groups are always in a topological order, and a module that runs
twice is two groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache

from cgtool.analysis.graph.places import Place, Places, file_line, module_at_depth
from cgtool.analysis.graph.schedule import in_order
from cgtool.model.capture import Capture, Graph, Node


@dataclass(slots=True)
class Item:
    """One box of the picture: a node, a group of nodes, or a point where hidden paths meet."""

    members: list[int]
    """Node ids; those of the first repeat come first. Empty for a point."""
    title: str | None = None
    """The title of a group; None for a node."""
    module: str | None = None
    """The module that all nodes of a group belong to, if there is one."""
    inside: int = 0
    """Edges between its members."""
    repeats: int = 1
    """How many equal boxes it stands for."""
    fold: int | None = None
    """The innermost of ``View.folds`` that it is a part of."""

    @property
    def is_point(self) -> bool:
        return not self.members

    @property
    def once(self) -> list[int]:
        """The members of the first repeat."""
        return self.members[: len(self.members) // self.repeats]


@dataclass(slots=True)
class Link:
    """``target`` waits for ``source`` (positions in ``View.items``)."""

    source: int
    target: int
    hidden: bool = False
    """True for a path through nodes that are not shown."""
    programmatic: bool = False
    edges: int = 1
    """Edges that it stands for."""
    carried: int | None = None
    """The fold, from one repeat of which to the next it leads: backwards in the picture, or from a
    box to itself."""


@dataclass(slots=True)
class Fold:
    """A repeated part, shown once. Its items are those whose ``Item.fold`` it is."""

    modules: tuple[str, ...]
    """``layers.*``; more than one for a part of several modules, none for a part of none."""
    type: str | None
    """The type of the module, if it is one."""
    times: int
    parent: int | None
    """The fold that it is inside of."""
    differs: tuple[str, ...] = ()
    """In what the repeats differ: ``4 streams``."""


@dataclass(slots=True)
class View:
    """One graph, as it is shown. Items are in a topological order, but for carried links."""

    graph: int
    """Index into ``Capture.graphs``."""
    items: list[Item] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    node_count: int = 0
    """Nodes of the graph, shown or not."""
    folds: list[Fold] = field(default_factory=list)
    rows: bool = False
    """Whether straight runs of items are drawn as the rows of one box."""

    def folds_of(self, item: Item) -> tuple[int, ...]:
        """The folds that an item is part of, the outermost first."""
        return () if item.fold is None else (*self.folds_above(item.fold), item.fold)

    def folds_above(self, fold: int) -> tuple[int, ...]:
        """The folds that a fold is part of, the outermost first."""
        parent = self.folds[fold].parent
        return () if parent is None else (*self.folds_above(parent), parent)


def whole(index: int, graph: Graph) -> View:
    """Every node and every edge."""
    order = in_order(graph)
    position = {node: place for place, node in enumerate(order)}
    links = [
        Link(position[edge.source], position[edge.target], False, edge.type == 1)
        for edge in graph.edges
    ]
    return View(index, [Item([node]) for node in order], links, len(order))


def only(index: int, graph: Graph, shown: Sequence[bool]) -> View:
    """The nodes where ``shown`` is true, and the paths between them.

    A path through hidden nodes becomes one link, marked ``hidden``. A hidden node with one way in
    or one way out is merged into its neighbor, which adds no link; where several paths meet and
    separate again a point represents the hidden nodes, because one link for each pair would be more
    links than the graph has edges. Linear but for the rounds, which are few.
    """
    if all(shown):
        return whole(index, graph)
    order = in_order(graph)
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
            continue
        known.edges += 1
        if not hidden:
            known.hidden, known.programmatic = False, edge.type == 1
    return View(index, items, list(direct.values()), len(order))


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
    """For each node, the node that represents it: itself, a neighbor, or -1 for none.

    Merging a node into its only successor or its only predecessor changes no path between the
    others, nor does merging two nodes with the same successors or the same predecessors. One can
    make room for the next, so all are repeated until nothing changes.
    """
    replaced_by = [node if live else -1 for node, live in enumerate(between)]
    hidden = [node for node in order if between[node] and not shown[node]]
    pairs = {
        (edge.source, edge.target)
        for edge in graph.edges
        if between[edge.source] and between[edge.target]
    }
    while hidden:
        count = len(hidden)
        for forward in (False, True):
            neighbors: dict[int, set[int]] = {}
            for source, target in pairs:
                node, other = (target, source) if forward else (source, target)
                if not shown[node]:
                    neighbors.setdefault(node, set()).add(other)
            into: dict[int, int] = {}
            twins: dict[frozenset[int], int] = {}
            for node in hidden if forward else reversed(hidden):
                ends = frozenset(into.get(other, other) for other in neighbors.get(node, ()))
                if len(ends) == 1:
                    (into[node],) = ends
                elif (twin := twins.setdefault(ends, node)) != node:
                    into[node] = twin
            hidden = [node for node in hidden if node not in into]
            replaced_by = [into.get(node, node) for node in replaced_by]
            moved = ((into.get(a, a), into.get(b, b)) for a, b in pairs)
            pairs = {pair for pair in moved if pair[0] != pair[1]}
        if len(hidden) == count:
            break
    return replaced_by


Kind = tuple[Hashable, str, str | None]
"""A key that the nodes of a group share, the title of the group, and its module."""


def by_module(capture: Capture, view: View, depth: int) -> View:
    """Groups of the modules down to ``depth`` names of their path (``layers.0`` is 2); nodes that
    no module ran are grouped by Python function."""
    graph = capture.graphs[view.graph]
    places = Places(capture)

    @cache
    def of_origin(origin: int | None) -> Kind:
        place = places.of_origin(origin)
        if place.module is None:
            line = place.line
            return (line and (line.file, line.function),), _function_title(place), None
        module = module_at_depth(place.module, depth) if depth else ""
        return module, module or graph.name, module

    def of_item(item: Item) -> Kind | None:
        if item.is_point or is_special(node := graph.nodes[item.members[0]]):
            return None
        return of_origin(node.origin)

    return _group(view, list(map(of_item, view.items)))


def _function_title(place: Place) -> str:
    """``train_step (train.py)``."""
    if place.line is None:
        return "outside modules"
    name = place.line.function.rpartition(".")[2]
    return f"{name} ({file_line(place.line).rpartition(':')[0]})"


def is_special(node: Node) -> bool:
    """Whether a reader looks for this very node: it touches the host or runs another graph, so no
    group takes it in."""
    if node.copy is not None:
        return node.copy.kind in ("dtoh", "htod", "htoh")
    return node.type in ("host", "child", "conditional")


@dataclass(slots=True)
class Visit:
    """A visit to a module: its own boxes (positions in the view), and the visits inside it.

    A step runs a module in forward and again in backward: those are two visits.
    """

    path: str
    type: str | None = None
    """The type of the module, if one of its own nodes has it."""
    own: list[int] = field(default_factory=list)
    inside: dict[tuple[str, int], Visit] = field(default_factory=dict)


def module_tree(view: View, graph: Graph, places: Places, depth: int) -> Visit:
    """All boxes of a view by the modules that they are part of, to a depth.

    The root is not a module. A visit to ``layers`` that holds nothing but one to ``layers.0`` is
    that one.
    """
    root = Visit("")
    visits = [root] * len(view.items)
    modules = [module_of(graph, item, places) for item in view.items]
    for level in range(1, depth + 1):
        kinds = [
            (id(visit), module_at_depth(module, level))
            if module and module.count(".") + 1 >= level
            else None
            for visit, module in zip(visits, modules, strict=True)
        ]
        for position, run in enumerate(_runs(view, kinds)):
            kind = kinds[position]
            if kind is None:
                continue
            _, path = kind
            visit = visits[position].inside.setdefault((path, run), Visit(path))
            place = places.of(graph.nodes[view.items[position].members[0]])
            if place.module == path:
                visit.type = place.module_type
            visits[position] = visit
    for position, visit in enumerate(visits):
        visit.own.append(position)
    return _without_lone(root)


def _without_lone(visit: Visit) -> Visit:
    if visit.path and not visit.own and len(visit.inside) == 1:
        (inner,) = visit.inside.values()
        return _without_lone(inner)
    visit.inside = {key: _without_lone(inner) for key, inner in visit.inside.items()}
    return visit


def module_of(graph: Graph, item: Item, places: Places) -> str | None:
    """The module of a box, when it has one."""
    if item.is_point:
        return None
    if item.title is not None:
        return item.module
    return places.of(graph.nodes[item.members[0]]).module


def _runs(view: View, kinds: Sequence[Hashable | None]) -> list[int]:
    """The number of each item's group; items of the kind None are alone. Linear."""
    before: list[list[int]] = [[] for _ in view.items]
    for link in view.links:
        if link.carried is None:
            before[link.target].append(link.source)
    group_of: list[int] = []
    count = 0
    last: dict[Hashable, int] = {}
    for position, kind in enumerate(kinds):
        latest = max((group_of[source] for source in before[position]), default=-1)
        known = last.get(kind, -1) if kind is not None else -1
        if known >= 0 and known >= latest:
            # Every link leads from a group to itself or to one that was begun later.
            group_of.append(known)
            continue
        group_of.append(count)
        if kind is not None:
            last[kind] = count
        count += 1
    return group_of


def _group(view: View, kinds: Sequence[Kind | None]) -> View:
    """One item for each group of items that have a kind in common."""
    group_of = _runs(view, [None if kind is None else kind[0] for kind in kinds])
    groups: list[Item] = []
    for item, kind, group in zip(view.items, kinds, group_of, strict=True):
        if group < len(groups):
            groups[group].members.extend(item.members)
            groups[group].inside += item.inside
            continue
        title, module = (kind[1], kind[2]) if kind is not None else (None, None)
        groups.append(Item(list(item.members), title, module, item.inside))
    for item in groups:
        if len(item.members) == 1:
            item.title = item.module = None
    links: dict[tuple[int, int], Link] = {}
    for link in view.links:
        pair = (group_of[link.source], group_of[link.target])
        if pair[0] == pair[1]:
            groups[pair[0]].inside += link.edges
            continue
        known_link = links.get(pair)
        if known_link is None:
            links[pair] = Link(*pair, link.hidden, link.programmatic, link.edges)
        else:
            known_link.edges += link.edges
            known_link.hidden &= link.hidden
            known_link.programmatic &= link.programmatic
    return View(view.graph, groups, list(links.values()), view.node_count)
