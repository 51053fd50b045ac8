"""Where a program leaves its graphs: the ops between two replays (``run --eager-breaks``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.reports import place_of
from cgtool.model.capture import Capture, Frame
from cgtool.model.ledger import EagerBreak, EagerOp, LedgerGraph
from cgtool.model.part_files import Between

_FEW = 8
"""Up to this many graphs have names of their own; more are put together by owner."""


@dataclass(frozen=True)
class EagerRow:
    """An op of one line, between graphs of two kinds."""

    line: str
    op: str
    per_step: float
    """How often, each time that the program comes from the one graph to the other."""
    host_ns: int
    """Host time each time."""
    total_ns: int
    before: str
    """The graph that was replayed before."""
    after: str


def breaks_of(
    between: Iterable[Between],
    counters: Sequence[tuple[int, int, int, int]],
    frame_indices: Callable[[Iterable[Frame]], tuple[int, ...]],
) -> list[EagerBreak]:
    """What one process did between its replays; the graphs by their numbers there."""
    ways: dict[tuple[int, int], tuple[int, int]] = {}
    ops: dict[tuple[int, int], list[EagerOp]] = defaultdict(list)
    for record in between:
        if record.number >= len(counters):
            continue  # the disk was full
        count, _, _, host_ns = counters[record.number]
        way = record.before, record.after
        if record.is_op:
            ops[way].append(EagerOp(record.op, frame_indices(record.frames), count, host_ns))
        else:
            ways[way] = count, host_ns
    return [
        EagerBreak(*way, times, host_ns, tuple(ops[way])) for way, (times, host_ns) in ways.items()
    ]


def eager_rows(capture: Capture, breaks: Sequence[EagerBreak]) -> tuple[EagerRow, ...]:
    """The ops by line and by the graphs around them, those that take longest first. Many graphs
    are put together by who captures them."""
    assert capture.ledger is not None
    graphs = capture.ledger.graphs
    ends_of_ways = {place for way in breaks for place in (way.before, way.after)}
    names = {at: _name(graphs[at], len(ends_of_ways) <= _FEW) for at in ends_of_ways}
    steps: dict[tuple[str, str], int] = defaultdict(int)
    found: dict[tuple[str, str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for way in breaks:
        ends = names[way.before], names[way.after]
        steps[ends] += way.times
        for op in way.ops:
            line = file_line(place_of(tuple(capture.frames[frame] for frame in op.frames)))
            total = found[line, op.op or "other ops", *ends]
            total[0] += op.count
            total[1] += op.host_ns
    rows = (
        EagerRow(
            line, op, count / steps[before, after], host_ns // steps[before, after], host_ns,
            before, after,
        )
        for (line, op, before, after), (count, host_ns) in found.items()
    )  # fmt: skip
    return tuple(sorted(rows, key=lambda row: -row.total_ns))


def _name(graph: LedgerGraph, alone: bool) -> str:
    """What a graph is called, alone or with all of its owner."""
    number = str(graph.graph) if alone and graph.graph is not None and not graph.key else ""
    return " ".join(filter(None, (graph.owner, graph.key if alone else "", number)))
