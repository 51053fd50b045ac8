"""Differences as rows: nodes by line and by module, edges, and figures.

``a`` and ``b`` are the two captures everywhere; None means that this side has no such thing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from cgtool.analysis.diff.graphs import Matched, OperandChange
from cgtool.analysis.diff.pairing import Fact, Facts, size_fields
from cgtool.analysis.graph.kernel_names import short_kernels
from cgtool.analysis.graph.places import file_line, module_at_depth, part_of, short_op
from cgtool.analysis.units import dimensions_text
from cgtool.model.capture import ArgumentList, Capture, Frame

REMOVED, ADDED, CHANGED, MOVED = "removed", "added", "changed", "moved"
_MODULE_ROWS = 8
_DEEPEST = 9
"""Names of a module path."""
_DEFAULT = "default"
"""Stands for the value of an argument that a capture does not list."""


class ChangedAttribute(msgspec.Struct, frozen=True):
    """One attribute of a node: both values if it changed, else that of the side that has it."""

    name: str
    """``kernel``, ``kind``, ``op``, ``stream``, a field that is ``COMPARED`` (``grid``, ``dynamic
    shared bytes``), or an argument of the op (``other``)."""
    a: str | None
    b: str | None
    is_argument: bool = False
    """It is an argument of the op: its value, or for a tensor also what computed it."""


class ChangeRow(msgspec.Struct, frozen=True):
    """Nodes of one op at one line that changed in the same way."""

    graph: str
    change: str
    """``removed``, ``added``, ``changed`` or ``moved``."""
    nodes: int
    type: str
    op: str | None
    line: str | None
    module: str
    """One module, or a pattern that all of them match (``layers.*.linear``)."""
    attributes: tuple[ChangedAttribute, ...]
    """Attributes of the first of these nodes."""
    variants: int
    """The number of different values of these attributes among the nodes: 1 if all nodes agree."""
    a: tuple[int, ...]
    """Ids of the nodes."""
    b: tuple[int, ...]
    """Ids of the nodes; a changed node has the same position as in ``a``."""


class ModuleChange(msgspec.Struct, frozen=True):
    """Nodes of one module that differ."""

    module: str
    a: int
    b: int
    removed: int
    added: int
    changed: int
    moved: int


class GraphChange(msgspec.Struct, frozen=True):
    """One graph."""

    name: str
    phase: str
    change: str
    """``same``, ``changed``, ``removed`` or ``added``."""
    a: int | None
    """Its nodes."""
    b: int | None
    removed: int = 0
    added: int = 0
    changed: int = 0
    moved: int = 0
    edges_removed: int = 0
    """Dependencies between nodes of both sides."""
    edges_added: int = 0


class EdgeRow(msgspec.Struct, frozen=True):
    """Dependencies between matched nodes that only one side has, of one pair of lines."""

    graph: str
    change: str
    """``removed`` or ``added``."""
    edges: int
    source: str
    """Op, line and module; a pattern of modules if there are several."""
    target: str
    """The node that waits for the other."""
    nodes: tuple[tuple[int, int], ...]
    """Ids of source and target, in ``a``."""


class Figure(msgspec.Struct, frozen=True):
    """A number on both sides: bytes, nanoseconds or a count."""

    of: str
    """``pool shared``, ``driver``, a graph, a phase, ``program``."""
    kind: str
    """``reserved``, ``peak``; ``replay``, ``eager in bench``."""
    a: float | None
    b: float | None
    judged: bool = False
    """Whether another value is a difference. Times, and what the driver takes for itself, are not
    the same twice."""

    @property
    def difference(self) -> float | None:
        """``b`` less ``a``; None if one side has no number."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def relative(self) -> float | None:
        """The difference as a share of ``a``; None if there is no difference."""
        return self.difference / self.a if self.difference and self.a else None


class LineTime(msgspec.Struct, frozen=True):
    """GPU time of the nodes of one op at one line."""

    op: str | None
    line: str | None
    a: int
    """Nanoseconds."""
    b: int

    @property
    def difference(self) -> int:
        return self.b - self.a

    @property
    def relative(self) -> float | None:
        """The difference as a share of ``a``; None if there is no difference."""
        return self.difference / self.a if self.difference and self.a else None


class Change(NamedTuple):
    """A node that differs between the sides."""

    matched: Matched
    change: str
    a: int | None
    b: int | None
    before: Fact | None
    after: Fact | None
    line: Frame | None
    """Taken from the node in ``b`` if it is there, else from that in ``a``."""

    @property
    def operands(self) -> list[OperandChange]:
        """The tensors that its op reads and did not read before."""
        if self.a is None or self.b is None:
            return []
        return self.matched.operands.get((self.a, self.b), [])

    @property
    def fact(self) -> Fact:
        """Taken from the node in ``b`` if it is there, else from that in ``a``."""
        fact = self.after or self.before
        assert fact is not None
        return fact


def find_changes(graphs: Iterable[Matched]) -> list[Change]:
    """Every node that differs, in the graphs of both captures."""
    changes: list[Change] = []
    for matched in graphs:
        nodes, left, right = matched.nodes, matched.facts_a, matched.facts_b
        for a in nodes.removed:
            changes.append(Change(matched, REMOVED, a, None, left.of[a], None, left.lines[a]))
        for b in nodes.added:
            changes.append(Change(matched, ADDED, None, b, None, right.of[b], right.lines[b]))
        for change, pairs in ((CHANGED, matched.changed), (MOVED, matched.moved)):
            changes += [
                Change(matched, change, a, b, left.of[a], right.of[b], right.lines[b])
                for a, b in pairs
            ]
    return changes


class Lines:
    """Groups changes by line; knows the names of kernels and streams of both captures."""

    def __init__(
        self,
        a: Capture,
        b: Capture,
        changes: Iterable[Change],
        argument_lists: Sequence[ArgumentList],
    ) -> None:
        """``argument_lists``: by ``Fact.arguments``."""
        self._arguments = argument_lists
        self._streams = a.streams, b.streams
        # Only names that are shown must be distinguishable.
        kernels = {
            fact.name
            for change in changes
            for fact in (change.before, change.after)
            if fact is not None and fact.type == "kernel" and fact.name is not None
        }
        self._short = short_kernels(sorted(kernels))

    def rows(self, changes: Iterable[Change]) -> list[ChangeRow]:
        """Nodes of one op at one line that changed in the same way, most first."""
        groups: dict[tuple[object, ...], list[Change]] = defaultdict(list)
        for change in changes:
            fact = change.fact
            line = (change.line.file, change.line.line) if change.line is not None else None
            key = (change.matched.which, change.change, fact.type, fact.op, line, _kind(change))
            groups[key].append(change)
        rows = [self._row(members) for members in groups.values()]
        return sorted(rows, key=lambda row: -row.nodes)

    def _row(self, members: Sequence[Change]) -> ChangeRow:
        first = members[0]
        distinct = {
            tuple(
                fact and (fact.name, fact.sizes, fact.arguments)
                for fact in (change.before, change.after)
            ): change
            for change in members
        }
        variants = {tuple(self._attributes(change)) for change in distinct.values()}
        return ChangeRow(
            first.matched.graph.name,
            first.change,
            len(members),
            first.fact.type,
            first.fact.op,
            file_line(first.line) or None,
            _pattern({change.fact.module for change in members}),
            tuple(self._attributes(first)),
            len(variants),
            tuple(change.a for change in members if change.a is not None),
            tuple(change.b for change in members if change.b is not None),
        )

    def _attributes(self, change: Change) -> Iterator[ChangedAttribute]:
        """The attributes that differ; for a node that only one side has, all that describe its
        work."""
        if change.change == MOVED:
            return
        before, after = change.before, change.after
        a, b = (dict(self._values(fact)) if fact else {} for fact in (before, after))
        for name in a | b:
            if a.get(name) != b.get(name):
                yield ChangedAttribute(name, a.get(name), b.get(name))
        if before is None or after is None:
            return
        if before.op != after.op:
            yield ChangedAttribute("op", before.op, after.op)
        yield from self._argument_changes(before, after)
        for operand in change.operands:
            a_text = _source_text(operand.a, change.matched.facts_a)
            b_text = _source_text(operand.b, change.matched.facts_b)
            yield ChangedAttribute(operand.name, a_text, b_text, is_argument=True)
        if change.matched.turned(before, after):
            a_name, b_name = (
                None if fact.stream is None else streams[fact.stream].name
                for fact, streams in zip((before, after), self._streams, strict=True)
            )
            yield ChangedAttribute("stream", a_name, b_name)

    def _argument_changes(self, before: Fact, after: Fact) -> Iterator[ChangedAttribute]:
        """The arguments that differ: of one op, and without the sizes of tensors if the node's own
        size differs."""
        if before.arguments is None or after.arguments is None or before.op != after.op:
            return
        old, new = (
            {argument.name: argument for argument in self._arguments[number].arguments}
            for number in (before.arguments, after.arguments)
        )
        for name in old | new:
            a, b = old.get(name), new.get(name)
            is_tensor = any(side is not None and side.operands for side in (a, b))
            if a != b and not (is_tensor and before.sizes != after.sizes):
                absent = None if is_tensor else _DEFAULT
                old_text, new_text = (side.value if side else absent for side in (a, b))
                yield ChangedAttribute(name, old_text, new_text, is_argument=True)

    def _values(self, fact: Fact) -> Iterator[tuple[str, str]]:
        if fact.name is not None and fact.type == "kernel":
            yield "kernel", self._short[fact.name]
        elif fact.name is not None:
            yield "kind", fact.name
        for field, value in zip(size_fields(fact.type), fact.sizes, strict=True):
            if value is not None:
                yield field.key, _text(value, field.unit)


def _kind(change: Change) -> tuple[object, ...]:
    """How a node differs."""
    before, after = change.before, change.after
    if before is None or after is None:
        return (change.fact.name,)
    if change.change == MOVED:
        return ()
    names = () if before.name == after.name else (before.name, after.name)
    ops = () if before.op == after.op else (before.op,)
    pairs = zip(before.sizes, after.sizes, strict=False)
    sizes = tuple(size != new_size for size, new_size in pairs)
    arguments = before.arguments != after.arguments
    operands = tuple(operand.name for operand in change.operands)
    return names, ops, sizes, arguments, operands, change.matched.turned(before, after)


def _source_text(source: int | str, facts: Facts) -> str:
    """``input x``; ``output of relu at model.py:12``."""
    if isinstance(source, str):
        return source
    fact, line = facts.of[source], file_line(facts.lines[source])
    name = fact.type if fact.op is None else short_op(fact.op)
    return f"output of {name} at {line}" if line else f"output of {name}"


def _text(value: object, unit: str | None) -> str:
    if isinstance(value, tuple):
        return dimensions_text(value)
    if unit == "bytes":
        return f"{value:,} B"
    return str(value)


def _pattern(modules: set[str | None]) -> str:
    """A pattern that all the modules match: ``layers.*.linear``."""
    names = sorted(module_at_depth(module) for module in modules)
    if len(names) == 1:
        return names[0] if None not in modules else ""
    split = [name.split(".") for name in names]
    if len(set(map(len, split))) > 1:
        return f"{len(names)} modules"
    levels = [set(words) for words in zip(*split, strict=True)]
    common = [next(iter(words)) if len(words) == 1 else "*" for words in levels]
    return ".".join(common) if set(common) != {"*"} else f"{len(names)} modules"


def by_module(
    a: Capture, b: Capture, graphs: Sequence[Matched], changes: Iterable[Change]
) -> tuple[ModuleChange, ...]:
    """The modules whose nodes differ, as deep as fits on a screen."""
    whole: dict[tuple[str, str | None], Counter[str]] = defaultdict(Counter)
    prefixes: dict[object, str] = {}
    for matched in graphs:
        part = None if matched.a is None else part_of(a, matched.a)
        shared = matched.b is not None and part == part_of(b, matched.b)
        prefix = prefixes[matched.which] = f"{part}: " if part is not None and shared else ""
        for side, facts in (("a", matched.facts_a.of), ("b", matched.facts_b.of)):
            for module, count in Counter(fact.module for fact in facts).items():
                whole[prefix, module][side] += count
    for change in changes:
        whole[prefixes[change.matched.which], change.fact.module][change.change] += 1
    chosen: dict[str, Counter[str]] = {}
    for depth in range(1, _DEEPEST):
        rows: dict[str, Counter[str]] = defaultdict(Counter)
        for (prefix, module), counts in whole.items():
            rows[prefix + module_at_depth(module, depth)].update(counts)
        shown = {name: counts for name, counts in rows.items() if counts.keys() - {"a", "b"}}
        if depth > 1 and (len(shown) > _MODULE_ROWS or shown.keys() == chosen.keys()):
            break
        chosen = shown
    return tuple(
        ModuleChange(name, *(counts[key] for key in ("a", "b", REMOVED, ADDED, CHANGED, MOVED)))
        for name, counts in chosen.items()
    )


def edges(graphs: Iterable[Matched]) -> tuple[EdgeRow, ...]:
    """Dependencies that only one side has, by the ops and lines of their two ends, most first."""
    rows: list[EdgeRow] = []
    for matched in graphs:
        facts = matched.facts_a.of
        for change, links in ((REMOVED, matched.edges.gone), (ADDED, matched.edges.new)):
            groups: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
            for source, target, *_ in links:
                groups[_end(matched, source), _end(matched, target)].append((source, target))
            for places, pairs in groups.items():
                ends = [
                    f"{place} {_pattern({facts[pair[end]].module for pair in pairs})}".rstrip()
                    for end, place in enumerate(places)
                ]
                name, (source_text, target_text) = matched.graph.name, ends
                rows.append(
                    EdgeRow(name, change, len(pairs), source_text, target_text, tuple(pairs))
                )
    return tuple(sorted(rows, key=lambda row: -row.edges))


def _end(matched: Matched, node: int) -> str:
    fact, line = matched.facts_a.of[node], file_line(matched.facts_a.lines[node])
    op = fact.type if fact.op is None else short_op(fact.op)
    return f"{op} {line}" if line else op
