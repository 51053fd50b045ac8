"""What is not the same in two captures.

A difference is what a replay would do differently: nodes, kernels, sizes, streams, dependencies,
and the bytes of the pools. Where the same work comes from (line, function, module) is none; nor are
times and what the driver takes for itself, in which two captures of the same code differ.
"""

from __future__ import annotations

from cgtool.analysis.diff.facts import Reader
from cgtool.analysis.diff.figures import memory, times, times_by_line
from cgtool.analysis.diff.graphs import Matched, match
from cgtool.analysis.diff.notes import notes
from cgtool.analysis.diff.report import ADDED, CHANGED, REMOVED, Diff, GraphRow, Side
from cgtool.analysis.diff.rows import Lines, by_module, changes, edges
from cgtool.analysis.diff.sentence import sentence
from cgtool.model.capture import Capture
from cgtool.model.failure import CgtoolError, usage


def compare(a: Capture, b: Capture, *, names: tuple[str, str] = ("A", "B")) -> Diff:
    """Compare two captures, called by these names.

    Raises CgtoolError (exit 2) when one is of a GPU and the other of the simulated device: the
    nodes of the one are kernels, those of the other ops.
    """
    if a.environment.simulated != b.environment.simulated:
        raise _not_comparable(a, b, names)
    reader_a, reader_b = Reader(a), Reader(b)
    graphs = match(a, b, reader_a, reader_b)
    every = changes(graphs)
    lines = Lines(a, b, every)
    rows = lines.rows(every)
    figures = memory(a, b)
    different = any(made.different for made in graphs) or any(
        row.judged and row.a != row.b for row in figures
    )
    return Diff(
        sentence(graphs, every, lines, rows, figures),
        different,
        _side(a, names[0]),
        _side(b, names[1]),
        a.environment.simulated,
        tuple(notes(a, b, graphs, every, figures)),
        tuple(map(_graph, graphs)),
        by_module(a, b, graphs, every),
        tuple(rows),
        edges(graphs),
        figures,
        times(a, b, graphs),
        times_by_line(graphs, reader_a.places, reader_b.places),
    )


def _not_comparable(a: Capture, b: Capture, names: tuple[str, str]) -> CgtoolError:
    device = (b if a.environment.simulated else a).environment.device
    simulated, real = names if a.environment.simulated else names[::-1]
    return usage(
        f"{simulated} was captured on the simulated device, {real} on {device}: they cannot be "
        "compared",
        why="the nodes of a graph on a GPU are kernels, copies and fills; on the simulated device "
        "they are ops",
        fix="capture both on the same: `cgtool capture ENTRY --device simulated` works everywhere",
    )


def _side(capture: Capture, name: str) -> Side:
    environment = capture.environment
    count = sum(len(graph.nodes) for graph in capture.graphs)
    return Side(name, capture.entry.spec, environment.device, environment.torch, count)


def _graph(made: Matched) -> GraphRow:
    one, other = (None if graph is None else len(graph.nodes) for graph in (made.a, made.b))
    change = ADDED if one is None else REMOVED if other is None else ""
    return GraphRow(
        made.graph.name,
        made.graph.phase,
        change or (CHANGED if made.different else "same"),
        one,
        other,
        len(made.nodes.removed),
        len(made.nodes.added),
        len(made.changed),
        len(made.moved),
        len(made.edges.gone),
        len(made.edges.come),
    )
