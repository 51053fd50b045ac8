"""The screen of ``cgtool diff``."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from cgtool.analysis.diff.compare import Diff
from cgtool.analysis.diff.rows import (
    ADDED,
    CHANGED,
    MOVED,
    REMOVED,
    ChangeRow,
    EdgeRow,
    Figure,
    GraphChange,
    LineTime,
    ModuleChange,
)
from cgtool.analysis.diff.values import OpDifference
from cgtool.analysis.graph.places import short_op
from cgtool.analysis.units import UNITS, bytes_text, count_text, time_text
from cgtool.render.table import BAD, GOOD, WARNING, Column, Screen, value_text
from cgtool.render.text import cut, machine_text

MARKS = {REMOVED: ("-", BAD), ADDED: ("+", GOOD), CHANGED: ("~", WARNING), MOVED: ("↕", WARNING)}
"""The marks that ``diff`` uses."""
_LONGEST = 160
"""Maximum length of a name."""

Text = Callable[[float | None], str]


def render(report: Diff, *, rows: int = 20, explain: bool = False) -> Screen:
    """One sentence; then graphs, modules, lines, dependencies, memory, times; ``rows`` of each,
    0 for all; with ``explain`` also what the headings mean."""
    most = rows or sys.maxsize
    screen = Screen(simulated=report.simulated, explain=explain)
    screen.line(cut(report.summary, 4 * _LONGEST), "bold" if report.different else GOOD)
    screen.labeled(_sides(report))
    screen.labeled((("note", note) for note in report.notes), WARNING)
    if (values := report.values) is not None:
        style = WARNING if values.first else GOOD
        screen.labeled([("values", cut(values.summary, 6 * _LONGEST))], style)
        screen.table("Ops that write other values", VALUES, values.counted[:most], name="values")
    if report.program:
        program = [row for row in report.program if row.a != row.b]
        screen.table("Program", _figure_columns(value_text), program)
    different = [row for row in report.graphs if row.change != "same"]
    graphs = report.graphs if different and len(report.graphs) <= most else different
    screen.table("Graphs", GRAPHS, graphs[:most])
    for graph in dict.fromkeys(row.name for row in report.graphs):
        shown = [row for row in report.changes[:most] if row.graph == graph]
        screen.table(f"{graph}, by line", CHANGES, shown, name="changes", part=("graph", graph))
    if fewest := report.changes[most:]:
        count = count_text(sum(row.nodes for row in fewest), "node")
        screen.line(f"{len(fewest):,} more rows with {count}: --rows 0 shows all", "dim")
    screen.table("By module", MODULES, report.modules, name="modules")
    left_out = report.edges[most:]
    rest = {"edges": sum(row.edges for row in left_out), "node": f"{len(left_out):,} more"}
    screen.table(
        "Dependencies between nodes of both",
        _edge_columns(report),
        report.edges[:most],
        [rest] if left_out else [],
        name="dependencies",
    )
    memory = [row for row in report.memory if row.a != row.b]
    # The driver's own memory differs from capture to capture: it is shown next to other changes.
    if not any(row.judged for row in memory):
        memory = []
    screen.table("Memory", _figure_columns(bytes_text), memory)
    screen.table("GPU time", _figure_columns(time_text), report.times, name="times")
    screen.table("Lines whose GPU time differs", LINES, report.lines, name="lines")
    if report.times:
        screen.line("times are not compared here: cgtool gate does that", "dim")
    screen.legend()
    return screen


def _sides(report: Diff) -> list[tuple[str, str]]:
    machines = [
        machine_text("the simulated device" if report.simulated else side.device, side.torch)
        for side in (report.a, report.b)
    ]
    lines = []
    for letter, side, machine in zip("AB", (report.a, report.b), machines, strict=True):
        words = [side.name, *([side.spec] if side.spec != side.name else [])]
        if machines[0] != machines[1]:
            words.append(f"on {machine}")
        lines.append((letter, ", ".join(words)))
    if machines[0] == machines[1]:
        lines.append(("on", machines[0]))
    return lines


def _nonzero(count: int | None) -> str:
    return f"{count:,}" if count else ""


def _name(name: str | None) -> str:
    return cut(name or "", _LONGEST)


_COUNTS: Sequence[Column[Any]] = (
    Column("A", "a", explanation="nodes of the graph in the first capture"),
    Column("B", "b", explanation="nodes of the graph in the second capture"),
    Column("removed", format=_nonzero),
    Column("added", format=_nonzero),
    Column("changed", format=_nonzero),
    Column(
        "moved", "moved", _nonzero, optional=True, explanation="nodes that run in another order"
    ),
)
"""In the rows of graphs and of modules."""
GRAPHS: Sequence[Column[GraphChange]] = (
    Column("graph", "name"),
    *_COUNTS,
    Column(
        "edges removed",
        "edges_removed",
        _nonzero,
        optional=True,
        explanation="dependencies between nodes of both captures",
    ),
    Column("edges added", "edges_added", _nonzero, optional=True),
)


def _change(row: ChangeRow) -> str:
    """``kernel gemm_128 → gemm_64, grid 8 → 16``; of a node that came or went, what it does.
    Nodes of the row that have other values are counted."""
    if row.change == MOVED:
        return "in another order"
    others = count_text(row.variants - 1, "other") if row.variants > 1 else ""
    if row.change != CHANGED:
        values = [
            (attribute.name, attribute.b or attribute.a or "") for attribute in row.attributes
        ]
        names = [value if name in ("kernel", "kind", "shape") else "" for name, value in values]
        sizes = [value for name, value in values if name == "bytes"]
        text = " ".join(cut(word, _LONGEST) for word in (*names, *sizes) if word)
        return f"{text} and {others}" if text and others else text
    words = []
    for attribute in row.attributes:
        a, b = attribute.a or "none", attribute.b or "none"
        if attribute.name == "shape":
            a, b = _first_that_differs(a, b)
        words.append(f"{attribute.name} {cut(a, _LONGEST)} → {cut(b, _LONGEST)}")
    return ", ".join(words) + (f", and {others}" if others else "")


def _first_that_differs(a: str, b: str) -> tuple[str, str]:
    """The shape of the first output that differs, on both sides."""
    pairs = zip(a.split("], "), b.split("], "), strict=False)
    before, after = next((pair for pair in pairs if pair[0] != pair[1]), (a, b))
    return _closed(before), _closed(after)


def _closed(shape: str) -> str:
    return f"{shape}]" if "[" in shape and not shape.endswith("]") else shape


_MARK: Column[Any] = Column(
    "",
    lambda row: row.change,
    lambda change: MARKS[change][0],
    wrap="never",
    style=lambda row: MARKS[row.change][1],
    name="status",
)
CHANGES: Sequence[Column[ChangeRow]] = (
    _MARK,
    Column("nodes"),
    Column("op", lambda row: _name("(no op)" if row.op is None else short_op(row.op))),
    Column("line", format=_name, wrap="never"),
    Column("change", _change, narrowest=24),
    Column("module", format=_name, priority=1),
)
MODULES: Sequence[Column[ModuleChange]] = (
    Column("module", format=_name),
    *_COUNTS,
)


VALUES: Sequence[Column[OpDifference]] = (
    Column("graph", priority=2),
    Column("node", "b"),
    Column("op", format=_name),
    Column("line", format=_name, wrap="never"),
    Column("module", format=_name, priority=1),
    Column(
        "difference",
        "relative",
        lambda share: "—" if share == math.inf else f"{share:.2g}",
        explanation="largest, of least, largest, mean and norm, as a share of the largest number",
    ),
)


def _edge_columns(report: Diff) -> Sequence[Column[EdgeRow]]:
    return [
        _MARK,
        Column("edges"),
        Column("node", lambda row: _name(row.target)),
        Column("waits for", lambda row: _name(row.source)),
        Column("graph", wrap="never", shown=len({row.graph for row in report.edges}) > 1),
    ]


def _difference_columns(text: Text) -> list[Column[Any]]:
    """Columns of rows that have ``a`` and ``b``."""
    return [
        Column("A", "a", text),
        Column("B", "b", text),
        Column(
            "difference",
            "difference",
            lambda value: _signed(value, text),
            unit=UNITS.get(text, ""),
        ),
        Column(
            "relative",
            "relative",
            lambda share: "" if share is None else f"{share:+.1%}",
            optional=True,
        ),
    ]


def _signed(value: float | None, text: Text) -> str:
    """``+2.0 MiB``; nothing if there is no difference."""
    return f"{'+' if value > 0 else '-'}{text(abs(value))}" if value else ""


def _figure_columns(text: Text) -> Sequence[Column[Figure]]:
    return [
        Column("of"),
        Column("figure", "kind"),
        *_difference_columns(text),
    ]


LINES: Sequence[Column[LineTime]] = (
    Column("op", lambda row: "(outside any op)" if row.op is None else short_op(row.op)),
    Column("line", lambda row: row.line or ""),
    *_difference_columns(time_text),
)
