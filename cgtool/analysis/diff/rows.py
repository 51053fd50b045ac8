"""The nodes that are not the same, by line and by module, and the edges between those that are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cgtool.analysis.diff.graphs import Matched
from cgtool.analysis.diff.pairing import Fact, size_fields
from cgtool.analysis.diff.report import (
    ADDED,
    CHANGED,
    MOVED,
    REMOVED,
    Attribute,
    ChangeRow,
    EdgeRow,
    ModuleRow,
)
from cgtool.analysis.graph.kernel_names import short_kernels
from cgtool.analysis.graph.places import file_line, module_at_depth, part_of, short_op
from cgtool.model.capture import Capture, Frame, Stream

_MODULE_ROWS = 8
_DEEPEST = 9
"""Names of a module path."""


class Change(NamedTuple):
    """One node that is not the same."""

    graph: Matched
    change: str
    a: int | None
    b: int | None
    before: Fact | None
    after: Fact | None
    fact: Fact
    """In ``b``, where it is there."""
    line: Frame | None
    """Likewise."""


def changes(graphs: Iterable[Matched]) -> list[Change]:
    """Every node that is not the same, of the graphs that both captures have."""
    return [change for made in graphs if made.a and made.b for change in _changes(made)]


def _changes(made: Matched) -> Iterator[Change]:
    one, other = made.facts_a, made.facts_b
    for a in made.nodes.removed:
        yield Change(made, REMOVED, a, None, one.of[a], None, one.of[a], one.lines[a])
    for b in made.nodes.added:
        yield Change(made, ADDED, None, b, None, other.of[b], other.of[b], other.lines[b])
    for change, pairs in ((CHANGED, made.changed), (MOVED, made.moved)):
        for a, b in pairs:
            yield Change(made, change, a, b, one.of[a], other.of[b], other.of[b], other.lines[b])


class Lines:
    """Groups changes by line, with the names of the kernels and streams of both captures."""

    def __init__(self, a: Capture, b: Capture, every: Iterable[Change]) -> None:
        self._streams = a.streams, b.streams
        # Names are told apart among those that are shown.
        kernels = {
            fact.name
            for one in every
            for fact in (one.before, one.after)
            if fact is not None and fact.type == "kernel" and fact.name is not None
        }
        self._short = short_kernels(sorted(kernels))

    def rows(self, every: Iterable[Change]) -> list[ChangeRow]:
        """Nodes of one op at one line that changed in the same way, most first."""
        groups: dict[tuple[object, ...], list[Change]] = defaultdict(list)
        for one in every:
            fact = one.fact
            line = (one.line.file, one.line.line) if one.line is not None else None
            key = (one.graph.which, one.change, fact.type, fact.op, line, _kind(one))
            groups[key].append(one)
        rows = [self._row(members) for members in groups.values()]
        return sorted(rows, key=lambda row: -row.nodes)

    def _row(self, members: Sequence[Change]) -> ChangeRow:
        first = members[0]
        sizes = first.before and first.before.sizes, first.after and first.after.sizes
        return ChangeRow(
            first.graph.graph.name,
            first.change,
            len(members),
            first.fact.type,
            first.fact.op,
            file_line(first.line) or None,
            _pattern({one.fact.module for one in members}),
            tuple(self._attributes(first)),
            any(
                (one.before and one.before.sizes, one.after and one.after.sizes) != sizes
                for one in members
            ),
            tuple(one.a for one in members if one.a is not None),
            tuple(one.b for one in members if one.b is not None),
        )

    def _attributes(self, one: Change) -> Iterator[Attribute]:
        """What is not the same; of a node that one side has alone, what it does."""
        if one.change == MOVED:
            return
        a, b = (dict(self._values(fact)) if fact else {} for fact in (one.before, one.after))
        for name in a | b:
            if a.get(name) != b.get(name):
                yield Attribute(name, a.get(name), b.get(name))
        if one.before is not None and one.after is not None:
            if one.before.op != one.after.op:
                yield Attribute("op", one.before.op, one.after.op)
            if one.graph.turned(one.before, one.after):
                before, after = (
                    _stream(streams, fact.stream)
                    for streams, fact in zip(self._streams, (one.before, one.after), strict=True)
                )
                yield Attribute("stream", before, after)

    def _values(self, fact: Fact) -> Iterator[tuple[str, str]]:
        if fact.name is not None:
            if fact.type == "kernel":
                yield "kernel", self._short[fact.name]
            else:
                yield "kind", fact.name
        for field, value in zip(size_fields(fact.type), fact.sizes, strict=True):
            if value is not None:
                yield field.key, _text(value, field.unit)


def _kind(one: Change) -> tuple[object, ...]:
    """In which way a node is not the same."""
    before, after = one.before, one.after
    if before is None or after is None:
        return (one.fact.name,)
    if one.change == MOVED:
        return ()
    names = () if before.name == after.name else (before.name, after.name)
    ops = () if before.op == after.op else (before.op,)
    pairs = zip(before.sizes, after.sizes, strict=False)
    sizes = tuple(one != other for one, other in pairs)
    return names, ops, sizes, one.graph.turned(before, after)


def _stream(streams: Sequence[Stream], stream: int | None) -> str | None:
    return None if stream is None else streams[stream].name


def _text(value: object, unit: str | None) -> str:
    if isinstance(value, tuple):
        # Dimensions of 1 at the end say nothing.
        size = list(value)
        while len(size) > 1 and size[-1] == 1:
            size.pop()
        return "×".join(map(str, size))
    if unit == "bytes":
        return f"{value:,} B"
    return str(value)


def _pattern(modules: set[str | None]) -> str:
    """What all of them match: ``layers.*.linear``."""
    names = sorted(module_at_depth(module, 99) for module in modules)
    if len(names) == 1:
        return names[0] if None not in modules else ""
    split = [name.split(".") for name in names]
    if len({len(one) for one in split}) > 1:
        return f"{len(names)} modules"
    words = [set(at) for at in zip(*split, strict=True)]
    common = [next(iter(one)) if len(one) == 1 else "*" for one in words]
    return ".".join(common) if set(common) != {"*"} else f"{len(names)} modules"


def by_module(
    a: Capture, b: Capture, graphs: Sequence[Matched], every: Iterable[Change]
) -> tuple[ModuleRow, ...]:
    """The modules whose nodes are not the same, as deep as fits a screen."""
    whole: dict[tuple[str, str | None], Counter[str]] = defaultdict(Counter)

    def prefix(made: Matched) -> str:
        if made.a is None or made.b is None:
            return ""
        one, other = part_of(a, made.a), part_of(b, made.b)
        return f"{one}: " if one is not None and one == other else ""

    for made in graphs:
        for side, facts in (("a", made.facts_a.of), ("b", made.facts_b.of)):
            for module, count in Counter(fact.module for fact in facts).items():
                whole[prefix(made), module][side] += count
    counted = Counter((one.graph.which, one.fact.module, one.change) for one in every)
    prefixes = {made.which: prefix(made) for made in graphs}
    for (which, module, change), count in counted.items():
        whole[prefixes[which], module][change] += count
    chosen: dict[str, Counter[str]] = {}
    for depth in range(1, _DEEPEST):
        rows: dict[str, Counter[str]] = defaultdict(Counter)
        for (part, module), counts in whole.items():
            rows[part + module_at_depth(module, depth)].update(counts)
        shown = {name: one for name, one in rows.items() if one.keys() - {"a", "b"}}
        if depth > 1 and (len(shown) > _MODULE_ROWS or shown.keys() == chosen.keys()):
            break
        chosen = shown
    return tuple(
        ModuleRow(name, one["a"], one["b"], one[REMOVED], one[ADDED], one[CHANGED], one[MOVED])
        for name, one in chosen.items()
    )


def edges(graphs: Iterable[Matched]) -> tuple[EdgeRow, ...]:
    """Dependencies that only one side has, by the ops and lines of their two ends, most first."""
    rows: list[EdgeRow] = []
    for made in graphs:
        facts = made.facts_a.of
        for change, links in ((REMOVED, made.edges.gone), (ADDED, made.edges.come)):
            groups: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
            for source, target, *_ in links:
                groups[_end(made, source), _end(made, target)].append((source, target))
            for (source_at, target_at), pairs in groups.items():
                modules = ({facts[pair[end]].module for pair in pairs} for end in (0, 1))
                source_in, target_in = map(_pattern, modules)
                rows.append(
                    EdgeRow(
                        made.graph.name,
                        change,
                        len(pairs),
                        f"{source_at} {source_in}".rstrip(),
                        f"{target_at} {target_in}".rstrip(),
                        tuple(pairs),
                    )
                )
    return tuple(sorted(rows, key=lambda row: -row.edges))


def _end(made: Matched, node: int) -> str:
    fact, line = made.facts_a.of[node], file_line(made.facts_a.lines[node])
    op = fact.type if fact.op is None else short_op(fact.op)
    return f"{op} {line}" if line else op
