"""A graph on one screen: repeated parts once, straight runs of nodes as the rows of one box, and,
where that is still too much, whole modules as one row.

Parts are repeats of each other when their nodes, one after the other, are equal in type, op,
function, kernel, launch and sizes (``Fact``), and have the same edges: among themselves, to the
next repeat, and to nodes outside, of which only the first repeat may wait for more, and only the
last may have more that wait for it. Streams, lines and arguments may differ, which
``Fold.differs`` names.

Nothing is lost: the members of all items are the nodes of the graph, and the links and the insides
of items add up to its edges.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import prod

from cgtool.analysis.diff.pairing import Reader
from cgtool.analysis.graph.places import path_pattern, short_op
from cgtool.analysis.graph.view import (
    Fold,
    Link,
    View,
    Visit,
    by_module,
    module_tree,
)
from cgtool.analysis.units import count_text, names_text
from cgtool.model.capture import Capture, Edge, topological

SCREEN_BOXES = 16
"""So many nodes fit a screen as boxes of their own."""
SCREEN_ROWS = 160
"""So many rows fit a screen, in columns."""
_LONGEST_PERIOD = 64
_SAVED = 4
"""A fold that saves fewer rows is not worth its own."""
_DEEPEST = 32
_DIGITS = re.compile(r"\d+")

_Part = tuple[Visit | None, list[int]]
"""A visit to a module, or a box that is part of none, and its items."""
_Rounds = list[list[int]]
"""The items of each repeat."""


def fit(
    capture: Capture, views: Sequence[View], depth: int | None = None
) -> tuple[list[View], str | None]:
    """The finest way to draw the views that fits a screen, and what it was, in words; None, and the
    views as they are, where those fit. Nodes are folded first, then the modules down to fewer and
    fewer names of their path, one row each; with ``depth``, those to that depth."""
    if depth is None and sum(len(view.items) for view in views) <= SCREEN_BOXES:
        return list(views), None
    used = {node.origin for view in views for node in capture.graphs[view.graph].nodes}
    modules = {capture.origins[index].module for index in used if index is not None}
    deepest = max((module.count(".") + 1 for module in modules if module), default=0)
    depths = [None, *range(deepest, -1, -1)]
    repeats = _Repeats(capture)

    @cache
    def drawn(depth: int | None) -> list[View]:
        return [repeats.folded(_rows(capture, view, depth)) for view in views]

    def rows(depth: int | None) -> int:
        return sum(len(view.items) for view in drawn(depth))

    if depth is None:
        # Fewer names hardly ever give more rows, so the finest that fits is found by halving.
        fits = bisect_left(depths[:-1], True, key=lambda depth: rows(depth) <= SCREEN_ROWS)
        depth = depths[fits]
    fitted = drawn(depth)
    ways = ["repeated parts drawn once"] if any(view.folds for view in fitted) else []
    ways += [] if depth is None else [f"modules to depth {depth}"]
    nodes = sum(len(item.members) for view in views for item in view.items)
    said = f"{count_text(nodes, 'node')} in {count_text(rows(depth), 'row')}"
    return fitted, ": ".join(filter(None, (said, ", ".join(ways))))


def _rows(capture: Capture, view: View, depth: int | None) -> View:
    grouped = view if depth is None else by_module(capture, view, depth)
    items = [replace(item, members=list(item.members)) for item in grouped.items]
    return replace(grouped, items=items, rows=True)


@dataclass(frozen=True, slots=True)
class Run:
    """Items that are drawn as the rows of one box: each waits for the one before it, and nothing
    else happens between the two."""

    items: tuple[int, ...]
    """Positions."""
    around: int | None
    """The innermost fold that is drawn as a frame around it, because its repeats are not straight
    or do not follow each other. Other folds are inside the run."""


def runs(view: View) -> tuple[list[Run], list[Link]]:
    """All items, each in one run; and the links that no run implies."""
    before: list[list[Link]] = [[] for _ in view.items]
    after: list[list[Link]] = [[] for _ in view.items]
    for link in view.links:
        if link.carried is None:
            before[link.target].append(link)
            after[link.source].append(link)
    within = [view.folds_of(item) for item in view.items]

    def next_of(item: int) -> int | None:
        """The only item that follows, if it follows only this one."""
        if len(after[item]) != 1 or len(before[target := after[item][0].target]) != 1:
            return None
        common = set(within[item]) & set(within[target])
        times = prod(view.folds[fold].times for fold in common)
        points = view.items[item].is_point or view.items[target].is_point
        return target if after[item][0].edges == times and not points else None

    follows = list(map(next_of, range(len(view.items))))
    framed = {
        fold for fold in range(len(view.folds)) if not _is_straight(view, fold, within, follows)
    }
    ends = {link.source for link in view.links if link.carried in framed}
    starts = {link.target for link in view.links if link.carried in framed}
    for item, target in enumerate(follows):
        if target is not None and (
            item in ends or target in starts or framed & (set(within[item]) ^ set(within[target]))
        ):
            follows[item] = None
    starts = set(range(len(view.items))) - set(follows)
    drawn = [
        Run(
            tuple(_run(start, follows)),
            next((fold for fold in reversed(within[start]) if fold in framed), None),
        )
        for start in sorted(starts)
    ]
    return drawn, [
        link
        for link in view.links
        if (follows[link.source] != link.target if link.carried is None else link.carried in framed)
    ]


def _run(start: int, follows: Sequence[int | None]) -> list[int]:
    run = [start]
    while (target := follows[run[-1]]) is not None:
        run.append(target)
    return run


def _is_straight(
    view: View, fold: int, within: Sequence[tuple[int, ...]], follows: Sequence[int | None]
) -> bool:
    """Whether a fold is one run, with one edge from each repeat to the next."""
    items = {item for item, folds in enumerate(within) if fold in folds}
    first, *others = items - {follows[item] for item in items}
    run = [item for item in _run(first, follows) if item in items]
    outer = prod(view.folds[each].times for each in view.folds_above(fold))
    back = [(link.source, link.target, link.edges) for link in view.links if link.carried == fold]
    return (
        not others
        and len(run) == len(items)
        and back == [(run[-1], run[0], outer * (view.folds[fold].times - 1))]
        and all(
            link.edges <= outer and (link.target == run[0] or link.source == run[-1])
            for link in view.links
            if link.carried is None and (link.source in items) != (link.target in items)
        )
    )


class _Repeats:
    """Finds and folds the repeated parts of the views of one capture."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.reader = Reader(capture, {})
        self.types = {module.path: module.type for module in capture.modules}
        self._kinds = cache(self._kinds_of)
        self._facts = cache(lambda graph: self.reader.facts(capture.graphs[graph]))

    def folded(self, view: View) -> View:
        """The view with every repeat once: the outer ones first, then those inside them."""
        while found := sorted(self._repeats(view), key=lambda repeat: repeat[1][0]):
            view = _merged(view, found)
            for number in range(len(view.folds) - len(found), len(view.folds)):
                view.folds[number].differs = self._differences(view, number)
        return view

    def _kinds_of(self, graph: int) -> list[int]:
        """By node: equal numbers for nodes that may be repeats of each other."""
        numbers: dict[Hashable, int] = {}
        return [
            numbers.setdefault(
                (fact.type, fact.op, fact.function, fact.autograd_node, fact.name, fact.sizes),
                len(numbers),
            )
            for fact in self._facts(graph).of
        ]

    def _repeats(self, view: View) -> Iterator[tuple[Fold, _Rounds]]:
        """Repeats that can be folded at once."""
        graph = self.capture.graphs[view.graph]
        allowed = _edge_rule(view)
        numbers: dict[Hashable, int] = {}
        todo = [module_tree(view, graph, self.reader.places, _DEEPEST)]
        while todo:
            visit = todo.pop()
            parts = _parts(visit)
            keys = [
                numbers.setdefault(self._key(view, visit, part), len(numbers)) for part in parts
            ]
            stretches = list(_periodic(parts, keys))
            while stretches:
                start, end, period = stretches.pop()
                starts = range(start, end, period)
                rounds = [
                    [item for _, items in parts[at : at + period] for item in items]
                    for at in starts
                ]
                if (len(rounds) - 1) * len(rounds[0]) < _SAVED:
                    todo += [inner for inner, _ in parts[start:end] if inner is not None]
                elif allowed(rounds):
                    yield self._fold(view, parts, starts), rounds
                else:
                    # An edge that one of them has keeps only its own half apart, and so on.
                    middle = starts[len(starts) // 2]
                    stretches += [(start, middle, period), (middle, end, period)]

    def _key(self, view: View, visit: Visit, part: _Part) -> Hashable:
        """What repeats have in common."""
        facts, kinds = self._facts(view.graph).of, self._kinds(view.graph)
        inner, items = part
        path = inner.path if inner else visit.path
        common: list[Hashable] = [inner is None, _name(path.removeprefix(visit.path))]
        for position in items:
            item = view.items[position]
            nodes = item.once
            modules = dict.fromkeys(facts[node].module for node in nodes)
            common += (item.repeats, item.fold, item.title is None, *map(kinds.__getitem__, nodes))
            common += (module and module.removeprefix(path) for module in modules)
        return tuple(common)

    def _fold(self, view: View, parts: Sequence[_Part], starts: range) -> Fold:
        period, first = starts.step, starts[0]
        lead, items = parts[first]
        parent = view.items[items[0]].fold
        columns = [[parts[start + at][0] for start in starts] for at in range(period)]
        modules = tuple(
            _inside(path_pattern([visit.path for visit in visits if visit]), view, parent)
            for visits in columns
            if visits[0]
        )
        type_ = self.types.get(lead.path, lead.type) if lead and period == 1 else None
        return Fold(modules, type_, len(starts), parent)

    def _differences(self, view: View, fold: int) -> tuple[str, ...]:
        """What is not the same in all repeats of a new fold."""
        facts = self._facts(view.graph)
        streams: set[Hashable] = set()
        lines: set[Hashable] = set()
        ops: dict[str, None] = {}
        for item in view.items:
            if item.fold != fold:
                continue
            size = len(item.members) // view.folds[fold].times
            for at in range(size):
                nodes = item.members[at::size]
                on = {facts.of[node].stream for node in nodes}
                streams |= on if len(on) > 1 else set()
                at_line = {facts.lines[node] for node in nodes}
                lines |= at_line if len(at_line) > 1 else set()
                if len({facts.of[node].arguments for node in nodes}) > 1:
                    ops[short_op(facts.of[nodes[0]].op or "")] = None
        return tuple(
            text
            for text, there in (
                (f"on {len(streams)} streams", streams),
                (f"at {len(lines)} lines", lines),
                (f"arguments of {names_text(list(ops), 3)} differ", ops),
            )
            if there
        )


def _parts(visit: Visit) -> list[_Part]:
    """What a visit consists of, in order."""
    parts: list[_Part] = [(None, [item]) for item in visit.own]
    parts += [(inner, sorted(_items(inner))) for inner in visit.inside.values()]
    return sorted(parts, key=lambda part: part[1][0])


def _items(visit: Visit) -> list[int]:
    return visit.own + [item for inner in visit.inside.values() for item in _items(inner)]


def _periodic(parts: Sequence[_Part], keys: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(start, end, period) of stretches that repeat themselves, and of the single parts between:
    at each place the period that saves most."""
    start, count = 0, len(keys)
    while start < count:
        best, best_end, best_period = 0, start + 1, 1
        for period in range(1, min(_LONGEST_PERIOD, (count - start) // 2) + 1):
            end = start + period
            while end < count and keys[end] == keys[end - period]:
                end += 1
            times = (end - start) // period
            saved = (times - 1) * sum(len(items) for _, items in parts[start : start + period])
            if saved > best:
                best, best_end, best_period = saved, start + times * period, period
        yield start, best_end, best_period
        start = best_end


def _name(path: str) -> str:
    return _DIGITS.sub("*", path)


def _inside(path: str, view: View, parent: int | None) -> str:
    """The path with the names of the folded module that it is inside of: its numbers vary, too."""
    for module in view.folds[parent].modules if parent is not None else ():
        names = path.split(".")
        depth = module.count(".") + 1
        if _name(".".join(names[:depth])) == _name(module):
            return ".".join([module, *names[depth:]])
    return path


def _edge_rule(view: View) -> Callable[[_Rounds], bool]:
    """Whether the repeats have the same links, so that those of the first can represent them."""
    touching: list[list[Link]] = [[] for _ in view.items]
    for link in view.links:
        touching[link.source].append(link)
        if link.target != link.source:
            touching[link.target].append(link)

    def allowed(rounds: _Rounds) -> bool:
        where = {
            item: (number, place)
            for number, items in enumerate(rounds)
            for place, item in enumerate(items)
        }
        if len({view.items[item].fold for item in where}) > 1:
            return False
        count = len(rounds)
        inside, carried, enters, leaves = (
            [Counter[Hashable]() for _ in range(count)] for _ in range(4)
        )
        for item, (number, place) in where.items():
            for link in touching[item]:
                kind = link.hidden, link.programmatic, link.edges, link.carried
                source, target = where.get(link.source), where.get(link.target)
                if source is None:
                    enters[number][link.source, place, kind] += 1
                elif target is None:
                    leaves[number][place, link.target, kind] += 1
                elif link.source != item:
                    continue
                elif source[0] == target[0]:
                    inside[number][place, target[1], kind] += 1
                elif link.carried is not None:
                    ends = place, target[1], target[0] - number, kind
                    leaves[number][ends] += 1
                    enters[target[0]][ends] += 1
                elif target[0] == number + 1:
                    carried[number][place, target[1], kind] += 1
                else:
                    return False
        return (
            _all_equal(inside)
            and _all_equal(carried[:-1])
            and _all_equal(enters[1:])
            and enters[-1] <= enters[0]
            and _all_equal(leaves[:-1])
            and leaves[0] <= leaves[-1]
        )

    return allowed


def _all_equal(values: Sequence[object]) -> bool:
    return all(a == b for a, b in pairwise(values))


def _merged(view: View, found: Sequence[tuple[Fold, _Rounds]]) -> View:
    """The view with the first of all repeats in place of all."""
    items = view.items
    lead = list(range(len(items)))
    number: dict[int, tuple[int, int]] = {}
    for index, (fold, rounds) in enumerate(found, len(view.folds)):
        for at, repeat in enumerate(rounds):
            number |= dict.fromkeys(repeat, (index, at))
        for first, *others in zip(*rounds, strict=True):
            for other in others:
                lead[other] = first
                items[first].members += items[other].members
                items[first].inside += items[other].inside
            items[first].repeats *= fold.times
            items[first].fold = index
    merged: dict[Hashable, Link] = {}
    for link in view.links:
        carried = link.carried
        before, after = number.get(link.source), number.get(link.target)
        if carried is None and before and after and before[0] == after[0] and before != after:
            carried = before[0]
        source, target = lead[link.source], lead[link.target]
        key = source, target, carried, link.hidden, link.programmatic
        known = merged.setdefault(key, replace(link, edges=0, source=source, target=target))
        known.edges, known.carried = known.edges + link.edges, carried
    kept = [at for at, first in enumerate(lead) if at == first]
    place = {at: position for position, at in enumerate(kept)}
    for link in merged.values():
        link.source, link.target = place[link.source], place[link.target]
    forward = [Edge(link.source, link.target) for link in merged.values() if link.carried is None]
    order = topological(len(kept), forward)
    assert order is not None, "repeats are in order, so folding them makes no cycle"
    place = {at: position for position, at in enumerate(order)}
    for link in merged.values():
        link.source, link.target = place[link.source], place[link.target]
    return replace(
        view,
        items=[items[kept[at]] for at in order],
        links=list(merged.values()),
        folds=[*view.folds, *(fold for fold, _ in found)],
    )
