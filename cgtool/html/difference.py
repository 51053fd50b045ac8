"""What changed from one capture to another, as the page shows it: which node is which, and the
tables of ``cgtool diff``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from cgtool.analysis.diff.compare import compare_nodes
from cgtool.analysis.diff.graphs import Matched
from cgtool.analysis.diff.rows import ChangeRow, Figure
from cgtool.analysis.units import time_text
from cgtool.html.packing import Packer
from cgtool.html.screens import page_table
from cgtool.model.capture import Capture
from cgtool.render import diff_table
from cgtool.render.table import Table

KINDS = ("same", "changed", "moved", "removed", "added")
SAME, CHANGED, MOVED, REMOVED, ADDED = range(len(KINDS))


def pack_difference(
    a: Capture, b: Capture, names: tuple[str, str], packer: Packer
) -> dict[str, Any]:
    """The tree; a row of the columns ``difference/...`` is a node of both or of one of them, as its
    number among all nodes of each. Raises CgtoolError (exit 2) where they cannot be compared."""
    report, graphs = compare_nodes(a, b, names=names)
    starts = [[0, *accumulate(len(graph.nodes) for graph in capture.graphs)] for capture in (a, b)]
    rows: list[tuple[int | None, int | None, int]] = []
    shown = []
    for matched in graphs:
        begin = len(rows)
        rows += _rows(matched, starts)
        shown.append({"a": matched.which[0], "b": matched.which[1], "rows": [begin, len(rows)]})
    for name, column in zip(("a", "b", "kind"), zip(*rows, strict=True), strict=False):
        packer.integers(f"difference/{name}", column, rising=name != "kind")
    return {
        "names": names,
        "kinds": KINDS,
        "sentence": report.summary,
        "different": report.different,
        "times": _time(report.times),
        "notes": report.notes,
        "graphs": shown,
        "tables": [
            _table(part, graphs, starts)
            for part in diff_table.render(report, rows=0).parts
            if isinstance(part, Table)
        ],
    }


def _time(figures: Sequence[Figure]) -> str | None:
    """How long the nodes of the graphs in both take, in a sentence; None if they are not timed."""
    nodes = [(row.a or 0, row.b or 0) for row in figures if row.kind == "nodes"]
    a, b = map(sum, zip(*nodes, strict=True)) if nodes else (0, 0)
    if not a or not b:
        return None
    share = b / a - 1
    if abs(share) < 0.0005:
        return f"The nodes of the graphs in both take {time_text(a)} in A and in B."
    return (
        f"The nodes of the graphs in both take {time_text(a)} in A and {time_text(b)} in B, "
        f"{abs(share):.1%} {'more' if b > a else 'less'}. `cgtool gate` can tell whether such "
        "a difference is due to chance."
    )


def _rows(
    matched: Matched, starts: Sequence[Sequence[int]]
) -> list[tuple[int | None, int | None, int]]:
    """Every node of a graph of both, in the order of the first."""
    which_a, which_b = matched.which
    from_a = 0 if which_a is None else starts[0][which_a]
    from_b = 0 if which_b is None else starts[1][which_b]
    nodes = matched.nodes
    if matched.a is None or matched.b is None:
        count = len(matched.graph.nodes)
        if matched.a is None:
            return [(None, from_b + node, ADDED) for node in range(count)]
        return [(from_a + node, None, REMOVED) for node in range(count)]
    changed, moved = set(matched.changed), set(matched.moved)
    rows: list[tuple[int | None, int | None, int]] = [
        (
            from_a + before,
            from_b + after,
            CHANGED if (before, after) in changed else MOVED if (before, after) in moved else SAME,
        )
        for before, after in sorted(nodes.matched)
    ]
    rows += [(from_a + node, None, REMOVED) for node in nodes.removed]
    rows += [(None, from_b + node, ADDED) for node in nodes.added]
    return rows


def _table(
    table: Table[Any], graphs: Sequence[Matched], starts: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """With the nodes of each row where those are known: ``[those of the first, the second]``."""
    page = page_table(table)
    if not all(isinstance(row, ChangeRow) for row in table.rows):
        return page
    often = Counter(matched.graph.name for matched in graphs)
    which = {
        matched.graph.name: matched.which for matched in graphs if often[matched.graph.name] == 1
    }

    def nodes(row: ChangeRow) -> list[list[int]]:
        sides = zip(which.get(row.graph, (None, None)), (row.a, row.b), starts, strict=True)
        return [
            [] if graph is None else [start[graph] + node for node in ids]
            for graph, ids, start in sides
        ]

    return {**page, "nodes": [nodes(row) for row in table.rows]}
