"""The screen of ``cgtool diff``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType

from cgtool.analysis.diff.report import (
    ADDED,
    CHANGED,
    MOVED,
    REMOVED,
    ChangeRow,
    Diff,
    Figure,
    GraphRow,
    LineTime,
    Side,
)
from cgtool.analysis.graph.places import short_op
from cgtool.analysis.units import bytes_text, count_text, time_text
from cgtool.render.table import BAD, GOOD, WARNING, Words, add, explained, plain, table
from cgtool.render.text import cut

MARKS = {REMOVED: ("-", BAD), ADDED: ("+", GOOD), CHANGED: ("~", WARNING), MOVED: ("↕", WARNING)}
"""As ``diff`` has them."""
_LONGEST = 160
"""Characters of a name."""


def render(report: Diff, *, rows: int = 20) -> RenderableType:
    """One sentence; then graphs, modules, lines, dependencies, memory, times; ``rows`` of each."""
    most = rows or max(len(report.changes), len(report.edges), 1)
    parts: list[RenderableType] = [
        plain(cut(report.summary, 4 * _LONGEST), "bold" if report.different else GOOD)
    ]
    parts.append(_sides(report))
    if report.notes:
        parts.append(explained((("note", note) for note in report.notes), WARNING))
    if any(row.change != "same" for row in report.graphs):
        parts += ["", _graphs(report)]
    if report.changes:
        parts += _changes(report, most)
    if report.modules:
        parts += ["", _modules(report)]
    if report.edges:
        parts += ["", _edges(report, most)]
    memory = [row for row in report.memory if row.a != row.b]
    # What the driver takes for itself is news only beside other news.
    if any(row.judged for row in memory):
        parts += ["", _figures("Memory", memory, _bytes, report.simulated)]
    if report.times:
        parts += ["", _figures("Time on the device", report.times, time_text, report.simulated)]
        if report.lines:
            parts += ["", _lines(report.lines)]
        parts.append(plain("times are shown, not judged: cgtool gate judges them", "dim"))
    return Group(*parts)


def _sides(report: Diff) -> RenderableType:
    rows = []
    machines = [_machine(report, side) for side in (report.a, report.b)]
    for letter, side, machine in zip("AB", (report.a, report.b), machines, strict=True):
        words = [side.name, *([side.spec] if side.spec != side.name else [])]
        if machines[0] != machines[1]:
            words.append(f"on {machine}")
        rows.append((letter, ", ".join(words)))
    if machines[0] == machines[1]:
        rows.append(("on", machines[0]))
    return explained(rows)


def _machine(report: Diff, side: Side) -> str:
    device = "the simulated device" if report.simulated else side.device
    return f"{device}, torch {side.torch}"


def _graphs(report: Diff) -> RenderableType:
    edges = any(row.edges_removed or row.edges_added for row in report.graphs)
    moved = any(row.moved for row in report.graphs)
    made = table(
        "Graphs",
        "graph",
        ("A", "right"),
        ("B", "right"),
        ("removed", "right"),
        ("added", "right"),
        ("changed", "right"),
        *([("moved", "right")] if moved else []),
        *([("dependencies", "right")] if edges else []),
        simulated=report.simulated,
    )
    for row in report.graphs:
        waits = f"-{row.edges_removed:,} +{row.edges_added:,}"
        add(
            made,
            row.name,
            "—" if row.a is None else f"{row.a:,}",
            "—" if row.b is None else f"{row.b:,}",
            *map(_some, (row.removed, row.added, row.changed)),
            *([_some(row.moved)] if moved else []),
            *([waits if row.edges_removed or row.edges_added else ""] if edges else []),
        )
    below = _one_sided(report.graphs)
    return Group(made, plain(below, "dim")) if below else made


def _one_sided(rows: Sequence[GraphRow]) -> str:
    words = {REMOVED: "A", ADDED: "B"}
    return "; ".join(
        f"{row.name} is in {words[row.change]} alone" for row in rows if row.change in words
    )


def _some(count: int) -> str:
    return f"{count:,}" if count else ""


def _changes(report: Diff, most: int) -> list[RenderableType]:
    """A table for each graph; those with the fewest nodes are left out."""
    shown = report.changes[:most]
    parts: list[RenderableType] = []
    for graph in dict.fromkeys(row.name for row in report.graphs):
        rows = [row for row in shown if row.graph == graph]
        if not rows:
            continue
        made = table(
            f"{graph}, by line",
            ("", "left"),
            ("nodes", "right"),
            "op",
            ("line", "left"),
            "module",
            "what",
            simulated=report.simulated,
        )
        for row in rows:
            mark, style = MARKS[row.change]
            op = short_op(row.op) if row.op is not None else "(no op)"
            count = f"{row.nodes:,}"
            names = (cut(name, _LONGEST) for name in (op, row.line or "", row.module))
            add(made, plain(mark, style), count, *names, _what(row))
        parts += ["", made]
    left_out = report.changes[most:]
    if left_out:
        count = count_text(sum(row.nodes for row in left_out), "node")
        parts.append(plain(f"{len(left_out):,} more rows, of {count}: --rows 0 shows all", "dim"))
    return parts


def _what(row: ChangeRow) -> str:
    """``kernel gemm_128 → gemm_64, grid 8 → 16``; of what came or went, what it does."""
    if row.change == MOVED:
        return "in another order"
    if row.change != CHANGED:
        values = [(one.name, one.b or one.a or "") for one in row.attributes]
        named = [value if name in ("kernel", "kind", "shape") else "" for name, value in values]
        sizes = [value for name, value in values if name == "bytes" and not row.vary]
        return " ".join(cut(word, _LONGEST) for word in (*named, *sizes) if word)
    words = []
    for one in row.attributes:
        a, b = one.a or "none", one.b or "none"
        if one.name == "shape":
            a, b = _first_that_differs(a, b)
        words.append(f"{one.name} {cut(a, _LONGEST)} → {cut(b, _LONGEST)}")
    return ", ".join(words) + (", and others" if row.vary else "")


def _first_that_differs(a: str, b: str) -> tuple[str, str]:
    """Of the outputs of an op, in the shapes of both sides."""
    pairs = zip(a.split("], "), b.split("], "), strict=False)
    one, other = next((pair for pair in pairs if pair[0] != pair[1]), (a, b))
    return _closed(one), _closed(other)


def _closed(shape: str) -> str:
    return f"{shape}]" if "[" in shape and not shape.endswith("]") else shape


def _modules(report: Diff) -> RenderableType:
    moved = any(row.moved for row in report.modules)
    made = table(
        "By module",
        "module",
        ("A", "right"),
        ("B", "right"),
        ("removed", "right"),
        ("added", "right"),
        ("changed", "right"),
        *([("moved", "right")] if moved else []),
        simulated=report.simulated,
    )
    for row in report.modules:
        counts = [row.removed, row.added, row.changed, *([row.moved] if moved else [])]
        add(made, cut(row.module, _LONGEST), f"{row.a:,}", f"{row.b:,}", *map(_some, counts))
    return made


def _edges(report: Diff, most: int) -> RenderableType:
    several = len({row.graph for row in report.edges}) > 1
    made = table(
        "Dependencies between nodes of both",
        ("", "left"),
        ("count", "right"),
        "this",
        "waits for",
        *([("graph", "left")] if several else []),
        simulated=report.simulated,
    )
    for row in report.edges[:most]:
        mark, style = MARKS[row.change]
        graph = [row.graph] if several else []
        ends = (cut(end, _LONGEST) for end in (row.target, row.source))
        add(made, plain(mark, style), f"{row.edges:,}", *ends, *graph)
    left_out = report.edges[most:]
    if left_out:
        count = sum(row.edges for row in left_out)
        more = Words(f"{len(left_out):,} more", "dim")
        add(made, "", f"{count:,}", more, "", *([""] if several else []))
    return made


def _bytes(value: float | None) -> str:
    return bytes_text(None if value is None else int(value))


def _figures(
    title: str, rows: Sequence[Figure], text: Callable[[float | None], str], simulated: bool
) -> RenderableType:
    made = table(
        title,
        "of",
        "figure",
        ("A", "right"),
        ("B", "right"),
        ("difference", "right"),
        simulated=simulated,
    )
    for row in rows:
        add(made, row.of, row.what, text(row.a), text(row.b), _difference(row.a, row.b, text))
    return made


def _difference(a: float | None, b: float | None, text: Callable[[float | None], str]) -> str:
    """``+2.0 MiB (+4 %)``."""
    if a is None or b is None or a == b:
        return ""
    sign = "+" if b > a else "-"
    share = f" ({sign}{abs(b - a) / a:.1%})" if a else ""
    return f"{sign}{text(abs(b - a))}{share}"


def _lines(rows: Sequence[LineTime]) -> RenderableType:
    made = table(
        "Where the time of nodes differs",
        "op",
        "line",
        ("A", "right"),
        ("B", "right"),
        ("difference", "right"),
    )
    for row in rows:
        op = short_op(row.op) if row.op is not None else "(outside any op)"
        texts = time_text(row.a), time_text(row.b), _difference(row.a, row.b, time_text)
        add(made, op, row.line or "", *texts)
    return made
