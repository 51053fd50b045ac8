"""A diff in one sentence."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from cgtool.analysis.diff.graphs import Matched
from cgtool.analysis.diff.rows import (
    ADDED,
    CHANGED,
    MOVED,
    REMOVED,
    Change,
    ChangedAttribute,
    ChangeRow,
    Figure,
    Lines,
)
from cgtool.analysis.diff.values import ValuesDiff
from cgtool.analysis.graph.places import short_op
from cgtool.analysis.units import bytes_text, count_text
from cgtool.model.capture import KernelLaunch
from cgtool.model.schema import fields

_NAMED = 3
_SHORT = 60
_INDEX = re.compile(r"[0-9]{1,9}")
_DEEPEST = 12
"""Module levels to name; everything deeper counts as one module."""
_LAUNCH = {field.key for field in fields(KernelLaunch) if field.compared}
_UNITS = {
    "kernel": ("kernel", "kernels"),
    "memcpy": ("copy", "copies"),
    "memset": ("fill", "fills"),
    "op": ("call", "calls"),
}

_NODES = ("node", "nodes")
_VERBS = {"reserved": "reserves", "peak": "holds at its peak", "live": "holds at the end"}

Clause = tuple[int, str]
"""The number of nodes in a clause, and its text."""


def sentence(
    graphs: Sequence[Matched],
    changes: Sequence[Change],
    lines: Lines,
    rows: Sequence[ChangeRow],
    memory: Sequence[Figure],
    values: ValuesDiff | None,
) -> str:
    """``B has 12 fewer nodes: 8 kernels of add at model.py:42 are gone; ...``"""
    before = sum(len(matched.a.nodes) for matched in graphs if matched.a is not None)
    after = sum(len(matched.b.nodes) for matched in graphs if matched.b is not None)
    clauses = [
        *_graphs(graphs),
        *_nodes(graphs, changes, lines, rows),
        *_edges(graphs),
        *_memory(memory),
        *_values(values),
    ]
    if not clauses:
        same = f"{count_text(after, 'node')} in {count_text(len(graphs), 'graph')}"
        return f"No difference: {same} {'is' if after == 1 else 'are'} the same"
    # Sorting is stable.
    clauses.sort(key=lambda clause: -clause[0])
    shown = [text for _, text in clauses[:_NAMED]]
    if len(clauses) > _NAMED:
        shown.append(f"and {count_text(len(clauses) - _NAMED, 'more change')}")
    if after == before:
        return f"Same number of nodes: {'; '.join(shown)}"
    more = "more" if after > before else "fewer"
    count = abs(after - before)
    return f"B has {count:,} {more} node{'s' * (count != 1)}: {'; '.join(shown)}"


def _graphs(graphs: Sequence[Matched]) -> Iterator[Clause]:
    for matched in graphs:
        if matched.a is None or matched.b is None:
            count = len(matched.graph.nodes)
            word = "gone" if matched.b is None else "new"
            yield count, f"the graph {matched.graph.name} is {word} ({count_text(count, 'node')})"


def _nodes(
    graphs: Sequence[Matched], changes: Sequence[Change], lines: Lines, rows: Sequence[ChangeRow]
) -> Iterator[Clause]:
    words = {REMOVED: "gone", ADDED: "new"}
    one_sided: dict[str, list[ChangeRow]] = {}
    for change, word in words.items():
        one_sided[change] = [row for row in rows if row.change == change]
        modules = Counter(node.fact.module for node in changes if node.change == change)
        whole = _whole_modules(graphs, modules, change)
        if whole:
            inside = {module for module in modules if whole & set(outer_modules(module))}
            count = sum(modules[module] for module in inside)
            one_sided[change] = lines.rows(
                node for node in changes if node.change == change and node.fact.module not in inside
            )
            yield count, f"{modules_are(whole)} {word} ({count_text(count, 'node')})"
    replaced: set[int] = set()
    for before, after in _replaced(one_sided[REMOVED], one_sided[ADDED]):
        replaced |= {id(before), id(after)}
        old, new = short_op(before.op or ""), short_op(after.op or "")
        name = new if new != old else after.op
        line = f" at {before.line}" if before.line else ""
        places = f" in {before.nodes:,} places" if before.nodes > 1 else ""
        yield before.nodes + after.nodes, f"{old}{line} became {name}{places}"
    for change, word in words.items():
        rest = [row for row in one_sided[change] if id(row) not in replaced]
        yield from _clauses(rest, f"is {word}", f"are {word}")
    by_aspect: dict[str, list[ChangeRow]] = defaultdict(list)
    for row in rows:
        if row.change == CHANGED:
            by_aspect[_aspect(row)].append(row)
    for aspect, changed in by_aspect.items():
        values = set(map(_new_values, changed))
        if len(values) == 1 and (value := values.pop()):
            yield from _clauses(changed, f"changed {value}", f"changed {value}")
        else:
            yield from _clauses(changed, f"changed its {aspect}", f"changed their {aspect}")
    moved = sum(row.nodes for row in rows if row.change == MOVED)
    if moved:
        yield moved, f"{count_text(moved, 'node runs', 'nodes run')} in another order"


def _replaced(
    removed: Sequence[ChangeRow], added: Sequence[ChangeRow]
) -> Iterator[tuple[ChangeRow, ChangeRow]]:
    """Rows with the same number of nodes in the same modules, where nothing else changed; outside
    modules, at the same line."""
    by_place: dict[tuple[object, ...], list[ChangeRow]] = defaultdict(list)
    for row in (*removed, *added):
        line = row.line if row.module in ("", "(root)", "(no module)") else None
        if row.op is not None:
            by_place[row.graph, row.module, line, row.type].append(row)
    for rows in by_place.values():
        if [row.change for row in rows] == [REMOVED, ADDED] and rows[0].nodes == rows[1].nodes:
            yield rows[0], rows[1]


def _clauses(rows: Sequence[ChangeRow], singular: str, plural: str) -> Iterator[Clause]:
    """A clause for each op and line, or a single one if there are many."""
    groups: dict[tuple[str, str | None, str | None, str], list[ChangeRow]] = defaultdict(list)
    for row in rows:
        # An op represents all of its kernels; without an op only the kernel has a name.
        name = "" if row.op is not None else _kernel(row)
        groups[row.type, row.op, row.line, name].append(row)
    if len(groups) > _NAMED:
        count = sum(row.nodes for row in rows)
        ops = len({row.op for row in rows})
        types = {row.type for row in rows}
        units = _UNITS.get(types.pop(), _NODES) if len(types) == 1 else _NODES
        yield count, f"{count_text(count, *units)} of {count_text(ops, 'op')} {plural}"
        return
    for members in groups.values():
        count = sum(row.nodes for row in members)
        yield count, f"{_nodes_of(members[0], count)} {singular if count == 1 else plural}"


def _whole_modules(
    graphs: Sequence[Matched], modules: Counter[str | None], change: str
) -> set[str]:
    """The outermost modules whose nodes (at least two) were all added or all removed."""
    if not modules:
        return set()
    in_a = _with_outer(Counter(fact.module for match in graphs for fact in match.facts_a.of))
    in_b = _with_outer(Counter(fact.module for match in graphs for fact in match.facts_b.of))
    had, have = (in_a, in_b) if change == REMOVED else (in_b, in_a)
    counts = _with_outer(modules)
    whole = {name for name, count in counts.items() if 1 < count == had[name] and not have[name]}
    return {name for name in whole if not whole & set(outer_modules(name)[:-1])}


def _with_outer(modules: Counter[str | None]) -> Counter[str]:
    """Counts of each module, including everything inside it."""
    counts = Counter[str]()
    for module, count in modules.items():
        for outer in outer_modules(module):
            counts[outer] += count
    return counts


def outer_modules(module: str | None) -> list[str]:
    """``layers``, ``layers.0``, ``layers.0.linear``: outermost first."""
    words = module.split(".", _DEEPEST) if module else []
    return [".".join(words[:length]) for length in range(1, len(words) + 1)]


def modules_are(names: Iterable[str]) -> str:
    """``module layers.9 is``, ``modules layers.9 and 2 others are``."""
    first, *more = sorted(names, key=_natural)
    return (
        f"modules {first} and {count_text(len(more), 'other')} are"
        if more
        else f"module {first} is"
    )


def _natural(module: str) -> list[tuple[int, str]]:
    """Sorts layers.9 before layers.10."""
    words = module.split(".")
    return [(int(word), "") if _INDEX.fullmatch(word) else (0, word) for word in words]


def _nodes_of(row: ChangeRow, count: int) -> str:
    """``8 kernels of add at model.py:42``; ``addmm at model.py:42 in layers.0`` where it is one."""
    unit = count_text(count, *_UNITS.get(row.type, _NODES))
    if row.op is not None:
        text = short_op(row.op) if count == 1 else f"{unit} of {short_op(row.op)}"
    else:
        text = f"{unit} {_kernel(row)}".rstrip()
    # The line is more useful than a pattern of modules.
    module = row.module if row.module != "(root)" and (count == 1 or not row.line) else ""
    line = f" at {row.line}" if row.line else ""
    return f"{text}{line} in {module}" if module else f"{text}{line}"


def _kernel(row: ChangeRow) -> str:
    values = {attribute.name: attribute.b or attribute.a for attribute in row.attributes}
    return values.get("kernel") or ""


def _new_values(row: ChangeRow) -> str:
    """``other from 2 to 3``, if that is short and all of the row's nodes changed so."""
    if row.variants > 1 or any(attribute.name in _LAUNCH for attribute in row.attributes):
        return ""
    text = " and ".join(
        f"{_name(attribute)} from {attribute.a} to {attribute.b}" for attribute in row.attributes
    )
    return text if len(text) <= _SHORT else ""


def _aspect(row: ChangeRow) -> str:
    names = [_name(attribute) for attribute in row.attributes]
    if "kernel" in names:
        names = [name for name in names if name not in _LAUNCH]
    words = ("launch" if name in _LAUNCH else name for name in names)
    return " and ".join(dict.fromkeys(words))


def _name(attribute: ChangedAttribute) -> str:
    return f"argument `{attribute.name}`" if attribute.is_argument else attribute.name


def _edges(graphs: Sequence[Matched]) -> Iterator[Clause]:
    gone = sum(len(matched.edges.gone) for matched in graphs)
    new = sum(len(matched.edges.new) for matched in graphs)
    for count, word in ((gone, "gone"), (new, "new")):
        if count:
            yield count, f"{count_text(count, 'dependency is', 'dependencies are')} {word}"


def _values(values: ValuesDiff | None) -> Iterator[Clause]:
    first = None if values is None else values.first
    if values is not None and first is not None:
        line = f" at {first.line}" if first.line else ""
        yield len(values.changes), f"values differ from {first.op}{line} on"


def _memory(memory: Sequence[Figure]) -> Iterator[Clause]:
    """A clause for each pool, about the first figure that differs."""
    named = set()
    for row in memory:
        if not row.judged or row.a == row.b or row.of in named:
            continue
        named.add(row.of)
        if row.a is None or row.b is None:
            yield 0, f"the {row.of} is {'new' if row.a is None else 'gone'}"
        else:
            more = "more" if row.b > row.a else "less"
            yield 0, f"the {row.of} {_VERBS[row.kind]} {bytes_text(abs(row.b - row.a))} {more}"
