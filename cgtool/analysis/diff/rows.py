"""The nodes that differ, by line and by module, and the edges that differ between the others."""

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
    """A node that is not the same on both sides."""

    matched: Matched
    change: str
    a: int | None
    b: int | None
    before: Fact | None
    after: Fact | None
    fact: Fact
    """Of the node in ``b`` if it is there, else in ``a``."""
    line: Frame | None
    """Likewise."""


def changes(graphs: Iterable[Matched]) -> list[Change]:
    """Every node that is not the same, of the graphs that both captures have."""
    return [change for matched in graphs if matched.a and matched.b for change in _changes(matched)]


def _changes(matched: Matched) -> Iterator[Change]:
    before, after = matched.facts_a, matched.facts_b
    for a in matched.nodes.removed:
        yield Change(matched, REMOVED, a, None, before.of[a], None, before.of[a], before.lines[a])
    for b in matched.nodes.added:
        yield Change(matched, ADDED, None, b, None, after.of[b], after.of[b], after.lines[b])
    for change, pairs in ((CHANGED, matched.changed), (MOVED, matched.moved)):
        for a, b in pairs:
            yield Change(
                matched, change, a, b, before.of[a], after.of[b], after.of[b], after.lines[b]
            )


class Lines:
    """Groups changes by line, with the names of the kernels and streams of both captures."""

    def __init__(self, a: Capture, b: Capture, every: Iterable[Change]) -> None:
        self._streams = a.streams, b.streams
        # Only the names that are shown have to be distinguishable.
        kernels = {
            fact.name
            for change in every
            for fact in (change.before, change.after)
            if fact is not None and fact.type == "kernel" and fact.name is not None
        }
        self._short = short_kernels(sorted(kernels))

    def rows(self, every: Iterable[Change]) -> list[ChangeRow]:
        """Nodes of one op at one line that changed in the same way, most first."""
        groups: dict[tuple[object, ...], list[Change]] = defaultdict(list)
        for change in every:
            fact = change.fact
            line = (change.line.file, change.line.line) if change.line is not None else None
            key = (change.matched.which, change.change, fact.type, fact.op, line, _kind(change))
            groups[key].append(change)
        rows = [self._row(members) for members in groups.values()]
        return sorted(rows, key=lambda row: -row.nodes)

    def _row(self, members: Sequence[Change]) -> ChangeRow:
        first = members[0]
        sizes = first.before and first.before.sizes, first.after and first.after.sizes
        return ChangeRow(
            first.matched.graph.name,
            first.change,
            len(members),
            first.fact.type,
            first.fact.op,
            file_line(first.line) or None,
            _pattern({change.fact.module for change in members}),
            tuple(self._attributes(first)),
            any(
                (change.before and change.before.sizes, change.after and change.after.sizes)
                != sizes
                for change in members
            ),
            tuple(change.a for change in members if change.a is not None),
            tuple(change.b for change in members if change.b is not None),
        )

    def _attributes(self, change: Change) -> Iterator[Attribute]:
        """What differs; of a node that only one side has, what it does."""
        if change.change == MOVED:
            return
        a, b = (dict(self._values(fact)) if fact else {} for fact in (change.before, change.after))
        for name in a | b:
            if a.get(name) != b.get(name):
                yield Attribute(name, a.get(name), b.get(name))
        if change.before is not None and change.after is not None:
            if change.before.op != change.after.op:
                yield Attribute("op", change.before.op, change.after.op)
            if change.matched.turned(change.before, change.after):
                before, after = (
                    _stream(streams, fact.stream)
                    for streams, fact in zip(
                        self._streams, (change.before, change.after), strict=True
                    )
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
    return names, ops, sizes, change.matched.turned(before, after)


def _stream(streams: Sequence[Stream], stream: int | None) -> str | None:
    return None if stream is None else streams[stream].name


def _text(value: object, unit: str | None) -> str:
    if isinstance(value, tuple):
        # Trailing dimensions of 1 say nothing.
        size = list(value)
        while len(size) > 1 and size[-1] == 1:
            size.pop()
        return "×".join(map(str, size))
    if unit == "bytes":
        return f"{value:,} B"
    return str(value)


def _pattern(modules: set[str | None]) -> str:
    """A pattern that all of them match: ``layers.*.linear``."""
    names = sorted(module_at_depth(module, 99) for module in modules)
    if len(names) == 1:
        return names[0] if None not in modules else ""
    split = [name.split(".") for name in names]
    if len(set(map(len, split))) > 1:
        return f"{len(names)} modules"
    levels = [set(words) for words in zip(*split, strict=True)]
    common = [next(iter(words)) if len(words) == 1 else "*" for words in levels]
    return ".".join(common) if set(common) != {"*"} else f"{len(names)} modules"


def by_module(
    a: Capture, b: Capture, graphs: Sequence[Matched], every: Iterable[Change]
) -> tuple[ModuleRow, ...]:
    """The modules whose nodes are not the same, as deep as fits a screen."""
    whole: dict[tuple[str, str | None], Counter[str]] = defaultdict(Counter)

    def prefix(matched: Matched) -> str:
        if matched.a is None or matched.b is None:
            return ""
        part, part_in_b = part_of(a, matched.a), part_of(b, matched.b)
        return f"{part}: " if part is not None and part == part_in_b else ""

    for matched in graphs:
        for side, facts in (("a", matched.facts_a.of), ("b", matched.facts_b.of)):
            for module, count in Counter(fact.module for fact in facts).items():
                whole[prefix(matched), module][side] += count
    counted = Counter((change.matched.which, change.fact.module, change.change) for change in every)
    prefixes = {matched.which: prefix(matched) for matched in graphs}
    for (which, module, kind), count in counted.items():
        whole[prefixes[which], module][kind] += count
    chosen: dict[str, Counter[str]] = {}
    for depth in range(1, _DEEPEST):
        rows: dict[str, Counter[str]] = defaultdict(Counter)
        for (part, module), counts in whole.items():
            rows[part + module_at_depth(module, depth)].update(counts)
        shown = {name: counts for name, counts in rows.items() if counts.keys() - {"a", "b"}}
        if depth > 1 and (len(shown) > _MODULE_ROWS or shown.keys() == chosen.keys()):
            break
        chosen = shown
    return tuple(
        ModuleRow(name, *(counts[key] for key in ("a", "b", REMOVED, ADDED, CHANGED, MOVED)))
        for name, counts in chosen.items()
    )


def edges(graphs: Iterable[Matched]) -> tuple[EdgeRow, ...]:
    """Dependencies that only one side has, by the ops and lines of their two ends, most first."""
    rows: list[EdgeRow] = []
    for matched in graphs:
        facts = matched.facts_a.of
        for change, links in ((REMOVED, matched.edges.gone), (ADDED, matched.edges.come)):
            groups: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
            for source, target, *_ in links:
                groups[_end(matched, source), _end(matched, target)].append((source, target))
            for (source_at, target_at), pairs in groups.items():
                modules = ({facts[pair[end]].module for pair in pairs} for end in (0, 1))
                source_in, target_in = map(_pattern, modules)
                rows.append(
                    EdgeRow(
                        matched.graph.name,
                        change,
                        len(pairs),
                        f"{source_at} {source_in}".rstrip(),
                        f"{target_at} {target_in}".rstrip(),
                        tuple(pairs),
                    )
                )
    return tuple(sorted(rows, key=lambda row: -row.edges))


def _end(matched: Matched, node: int) -> str:
    fact, line = matched.facts_a.of[node], file_line(matched.facts_a.lines[node])
    op = fact.type if fact.op is None else short_op(fact.op)
    return f"{op} {line}" if line else op
