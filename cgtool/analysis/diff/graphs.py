"""Matches the graphs of two captures and their nodes, and finds the dependencies and operands that
differ."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import astuple

from cgtool.analysis.diff.pairing import Fact, Facts, Pair, Pairing, Reader, pair
from cgtool.analysis.graph.places import part_of
from cgtool.analysis.ledger_findings import by_line
from cgtool.model.capture import Call, Capture, Edge, Graph
from cgtool.model.ledger import COMPILE

_Streams = tuple[int | None, int | None]
"""A stream of ``a`` and one of ``b``: indices into ``Capture.streams``."""

NO_FACTS = Facts((), ())
Which = tuple[int | None, int | None]
"""A graph of ``a`` and the same one of ``b``: indices into ``Capture.graphs``, None where one has
no such graph."""


_Source = int | str | None
"""The origin of a tensor: the id of the first node of the call that wrote it, or its name; None if
neither is known."""

EdgeTuple = tuple[int, int, int, int, int]
"""The fields of an ``Edge``; in results, the ids are those of the left graph."""


class OperandChange(NamedTuple):
    """An operand that is another tensor in ``b`` than in ``a``, each as a ``_Source``."""

    name: str
    """The name of the argument."""
    a: int | str
    b: int | str


@dataclass(frozen=True, slots=True)
class Rewired:
    """Edges that only one of two graphs has, between nodes that both have."""

    gone: list[EdgeTuple] = field(default_factory=list)
    new: list[EdgeTuple] = field(default_factory=list)
    moved: list[Pair] = field(default_factory=list)
    """Moved nodes that wait for other nodes than before, or that others wait for. Without any, only
    the order of creation differs, and the graphs are equal."""


@dataclass(slots=True)
class Matched:
    """A graph of ``a`` and the same one of ``b``, or a graph that only one of them has."""

    a: Graph | None
    b: Graph | None
    which: Which
    facts_a: Facts = NO_FACTS
    facts_b: Facts = NO_FACTS
    nodes: Pairing = field(default_factory=Pairing)
    changed: list[Pair] = field(default_factory=list)
    """Matched nodes whose work differs."""
    operands: dict[Pair, list[OperandChange]] = field(default_factory=dict)
    """The changed operands of matched nodes whose op reads other tensors than before."""
    elsewhere: list[Pair] = field(default_factory=list)
    """Matched nodes that do the same work, from another module or function."""
    streams: set[_Streams] = field(default_factory=set)
    """Pairs of equal streams; empty if every stream has the same number in both."""
    edges: Rewired = field(default_factory=Rewired)

    @property
    def graph(self) -> Graph:
        """The graph of ``b``, if it has one."""
        graph = self.b if self.b is not None else self.a
        assert graph is not None
        return graph

    def turned(self, before: Fact, after: Fact) -> bool:
        """Whether a node runs on another stream than before."""
        if not self.streams:
            return before.stream != after.stream
        return (before.stream, after.stream) not in self.streams

    @property
    def moved(self) -> list[Pair]:
        """Nodes at another place in the order; none if only the order of creation differs."""
        return self.nodes.moved if self.edges.moved else []

    @property
    def different(self) -> bool:
        """Whether a replay of ``b`` does something different from one of ``a``."""
        nodes, edges = self.nodes, self.edges
        rows = (nodes.removed, nodes.added, self.changed, edges.moved, edges.gone, edges.new)
        return self.a is None or self.b is None or any(rows)


def match(a: Capture, b: Capture, reader_a: Reader, reader_b: Reader) -> list[Matched]:
    """All graphs of both captures, in the order of ``b``, each followed by the bodies in it."""
    waiting = deque(_roots(a, b, reader_a, reader_b))
    result: list[Matched] = []
    while waiting:
        which = waiting.popleft()
        before = None if which[0] is None else a.graphs[which[0]]
        after = None if which[1] is None else b.graphs[which[1]]
        matched = Matched(before, after, which)
        if before is not None and after is not None:
            matched.facts_a, matched.facts_b = reader_a.facts(before), reader_b.facts(after)
            nodes = matched.nodes = pair(matched.facts_a, matched.facts_b)
            matched.operands = changed_operands(a, b, before, after, nodes)
            _judge(matched)
            kept = [*nodes.same, *nodes.alike]
            matched.edges = rewired(before.edges, after.edges, kept, nodes.moved)
        result.append(matched)
        waiting.extendleft(reversed(list(_bodies(matched))))
    return result


def _roots(a: Capture, b: Capture, reader_a: Reader, reader_b: Reader) -> list[Which]:
    """Graphs that are no body of a node, each with its partner in the other capture."""
    if a.ledger is not None and b.ledger is not None:
        ours, theirs = _by_owner(a, reader_a), _by_owner(b, reader_b)
    else:
        ours, theirs = _by_phase(a), _by_phase(b)
    partner = _partners(ours, theirs)
    roots_of_a, roots_of_b = (
        [at for at, graph in enumerate(side.graphs) if graph.parent is None] for side in (a, b)
    )
    gone = sorted(set(roots_of_a) - set(partner.values()))
    return [*((partner.get(at), at) for at in roots_of_b), *((at, None) for at in gone)]


_Keys = dict[int, tuple[Hashable, ...]]
"""Keys of each graph. Partners have an equal key; each key asks for less than the one before."""


def _by_phase(capture: Capture) -> _Keys:
    """Keys of the graphs of an ENTRY: phase and callable; then the phase alone."""
    return {
        at: ((graph.phase, part_of(capture, graph)), graph.phase)
        for at, graph in enumerate(capture.graphs)
        if graph.parent is None
    }


def _by_owner(capture: Capture, reader: Reader) -> _Keys:
    """Keys of the graphs of a program, which captures in any order: process, owner, key, place and
    nodes; without the process; without the nodes; only key and nodes."""
    assert capture.ledger is not None
    # Graphs that only hold a pool are alike.
    keys: _Keys = {
        entry.graph: (entry.process, COMPILE, None, None)
        for entry in capture.ledger.graphs
        if entry.graph is not None and entry.holds_a_pool
    }
    for line in by_line(capture, capture.ledger):
        place = line.place
        where = None if place is None else (place.file.rpartition("/")[2], place.function)
        for entry in line.entries:
            if entry.graph is not None:
                facts = reader.facts(capture.graphs[entry.graph]).of
                who = entry.owner, entry.key, where
                work = tuple((fact.op, fact.type, fact.name, fact.sizes) for fact in facts)
                keys[entry.graph] = (entry.process, who, work), (who, work), who, (entry.key, work)
    return keys


def _partners(ours: _Keys, theirs: _Keys) -> dict[int, int]:
    """The partner in ``a`` of each graph of ``b``: by the first key, in order; the rest by the
    second; then by the third, where only one graph on each side has it; then by the fourth."""
    partner: dict[int, int] = {}
    for level in range(max(map(len, theirs.values()), default=0)):
        taken = set(partner.values())
        waiting: dict[Hashable, deque[int]] = defaultdict(deque)
        for graph, keys in ours.items():
            if graph not in taken:
                waiting[keys[level]].append(graph)
        left = {graph: keys[level] for graph, keys in theirs.items() if graph not in partner}
        counts = Counter(left.values())
        for graph, key in left.items():
            same = waiting[key]
            if same and (level != 2 or len(same) == counts[key] == 1):
                partner[graph] = same.popleft()
    return partner


def _bodies(matched: Matched) -> Iterator[Which]:
    """Pairs of the graphs that child and conditional nodes run."""
    nodes = matched.nodes
    ours = {node.id: node.body for node in matched.a.nodes if node.body} if matched.a else {}
    theirs = {node.id: node.body for node in matched.b.nodes if node.body} if matched.b else {}
    if not ours and not theirs:
        return
    for left, right in sorted(nodes.matched):
        yield from zip_longest(ours.pop(left, ()), theirs.pop(right, ()))
    yield from ((at, None) for body in ours.values() for at in body)
    yield from ((None, at) for body in theirs.values() for at in body)


def _judge(matched: Matched) -> None:
    """Separate matched nodes with different work from those whose work only moved in the source."""
    nodes, ours, theirs = matched.nodes, matched.facts_a.of, matched.facts_b.of
    pairs = Counter((ours[a].stream, theirs[b].stream) for a, b in nodes.alike)
    if any(before != after for before, after in pairs):
        pairs.update((ours[a].stream, theirs[b].stream) for a, b in nodes.same)
        matched.streams = _one_to_one(pairs)
    work = attrgetter("op", "type", "name", "sizes", "arguments")
    for a, b in nodes.alike:
        same = work(ours[a]) == work(theirs[b]) and not matched.turned(ours[a], theirs[b])
        same = same and (a, b) not in matched.operands
        (matched.elsewhere if same else matched.changed).append((a, b))
    matched.changed = sorted({*matched.changed, *matched.operands})


def _one_to_one(pairs: Counter[_Streams]) -> set[_Streams]:
    """Pairs of equal streams, by the streams of most matched nodes: numbers shift when a stream is
    added. Stream 0 is the capturing stream in both."""
    chosen: set[_Streams] = {(None, None), (0, 0)}
    used_in_a, used_in_b = {None, 0}, {None, 0}

    def order(pair: _Streams) -> tuple[int, bool, int]:
        # Ties fall the same way whichever capture is given first.
        return -pairs[pair], pair[0] != pair[1], sum(stream or 0 for stream in pair)

    for before, after in sorted(pairs, key=order):
        if before not in used_in_a and after not in used_in_b:
            chosen.add((before, after))
            used_in_a.add(before)
            used_in_b.add(after)
    return chosen


def rewired(
    left: Sequence[Edge], right: Sequence[Edge], kept: Sequence[Pair], moved: Sequence[Pair]
) -> Rewired:
    """Compare edges. ``kept`` and ``moved`` are the pairs that were matched.

    The edges around a removed or an added node are replaced by one between its neighbors: such an
    edge is not a change of its own.
    """
    if not moved and left == right and all(a == b for a, b in kept):
        return Rewired()
    ours, theirs = [list(map(astuple, edges)) for edges in (left, right)]
    back = dict(kept)
    name = {b: a for a, b in kept}
    all_back = {**back, **dict(moved)}
    all_names = {**name, **{b: a for a, b in moved}}
    # In order, as dictionaries keep it: what lies side by side in memory is read side by side.
    before = dict.fromkeys([link for link in ours if link[0] in all_back and link[1] in all_back])
    after = dict.fromkeys(
        [
            (all_names[link[0]], all_names[link[1]], *link[2:])
            for link in theirs
            if link[0] in all_names and link[1] in all_names
        ]
    )
    lost = [link for link in before if link not in after]
    added = [link for link in after if link not in before]
    gone = [link for link in lost if link[0] in back and link[1] in back]
    new = [link for link in added if link[0] in back and link[1] in back]
    if gone:
        bridges = _Bridges(theirs, name)
        gone = [link for link in gone if not bridges.join(back[link[0]], back[link[1]])]
    if new:
        bridges = _Bridges(ours, back)
        new = [link for link in new if not bridges.join(link[0], link[1])]
    touched = {link[end] for link in (*lost, *added) for end in (0, 1)} if moved else ()
    return Rewired(sorted(gone), sorted(new), [pair for pair in moved if pair[0] in touched])


class _Bridges:
    """Groups of nodes that only one graph has, or has elsewhere, and the nodes that each connects.

    Those that hang together are one bridge; direction inside it is left out of account.
    """

    def __init__(self, links: Iterable[EdgeTuple], kept: Container[int]) -> None:
        self._over: dict[int, int] = {}
        ends: list[Pair] = []
        for source, target, *_ in [
            link for link in links if link[0] not in kept or link[1] not in kept
        ]:
            if source in kept or target in kept:
                ends.append((source, target))
            else:
                self._over[self._find(source)] = self._find(target)
        self._entering: dict[int, set[int]] = defaultdict(set)
        self._leaving: dict[int, set[int]] = defaultdict(set)
        for source, target in ends:
            if source in kept:
                self._entering[source].add(self._find(target))
            else:
                self._leaving[target].add(self._find(source))

    def _find(self, node: int) -> int:
        while self._over.setdefault(node, node) != node:
            above = self._over[self._over[node]]
            self._over[node], node = above, above
        return node

    def join(self, source: int, target: int) -> bool:
        """Whether a path through the nodes of a bridge may lead from ``source`` to ``target``."""
        entered = self._entering.get(source, set())
        return not entered.isdisjoint(self._leaving.get(target, ()))


# --- operands
# A tensor is known by what wrote it, or by its name if nothing in the graph did: never by the
# number of its storage. If the node that wrote it was removed or added, that is the change, not the
# node that reads it.


class _Operands:
    """The operands of one graph's calls, by the first node of the call."""

    def __init__(self, capture: Capture, graph: Graph) -> None:
        self._lists = capture.argument_lists
        self._calls = graph.calls
        self.names = {tensor.name for tensor in capture.memory.tensors}
        self.first_node: dict[int, int] = {}
        """Id of the first node of each call, by the number of the call."""
        for node in graph.nodes:
            if node.call is not None:
                self.first_node.setdefault(node.call, node.id)
        self._call_of = {node: call for call, node in self.first_node.items()}
        writer: dict[int, _Source] = {
            tensor.storage: tensor.name
            for tensor in reversed(capture.memory.tensors)
            if tensor.storage is not None
        }
        self._sources: list[tuple[_Source, ...]] = []
        for number, call in enumerate(graph.calls):
            self._sources.append(tuple(map(writer.get, call.operands)))
            writer |= dict.fromkeys(call.writes, self.first_node.get(number))

    def call(self, node: int) -> Call | None:
        """The call whose first node this is."""
        number = self._call_of.get(node)
        return None if number is None else self._calls[number]

    def sources(self, node: int) -> Sequence[_Source]:
        return self._sources[self._call_of[node]]

    def argument_names(self, call: Call) -> list[str]:
        """The name of each operand."""
        names: list[str] = []
        for argument in self._lists[call.arguments].arguments if call.arguments is not None else ():
            names += [argument.name] * min(argument.operands, len(call.operands) - len(names))
        return names


def changed_operands(
    a: Capture, b: Capture, before: Graph, after: Graph, nodes: Pairing
) -> dict[Pair, list[OperandChange]]:
    """Matched nodes, each the first of its op call, whose op reads other tensors. Linear in nodes
    and operands."""
    if not (a.argument_lists and b.argument_lists):
        return {}
    ours, theirs = _Operands(a, before), _Operands(b, after)
    partner = dict(nodes.matched)
    partner_of_b = {right: left for left, right in partner.items()}

    def differ(left: int | str, right: int | str) -> bool:
        if isinstance(left, str) and isinstance(right, str):
            # A name that only one side has is that of a renamed module.
            return left != right and left in theirs.names and right in ours.names
        known = isinstance(left, str) or left in partner
        known = known and (isinstance(right, str) or right in partner_of_b)
        return known and (isinstance(left, str) or partner[left] != right)

    changes: dict[Pair, list[OperandChange]] = {}
    for a_node, b_node in chain(nodes.same, nodes.alike):
        call, other = ours.call(a_node), theirs.call(b_node)
        if call is None or other is None:
            continue
        names = ours.argument_names(call)
        if names != theirs.argument_names(other):
            continue
        differences = [
            OperandChange(name, left, right)
            for name, left, right in zip(
                names, ours.sources(a_node), theirs.sources(b_node), strict=False
            )
            if left is not None and right is not None and differ(left, right)
        ]
        if differences:
            changes[a_node, b_node] = differences
    return changes
