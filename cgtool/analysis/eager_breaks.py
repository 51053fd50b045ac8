"""Where a program leaves its graphs: the ops between two replays (``run --eager-breaks``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.reports import place_of
from cgtool.model.capture import Capture, Frame
from cgtool.model.journal import Between
from cgtool.model.ledger import CALLABLES, EagerBreak, EagerOp, LedgerGraph


@dataclass
class _Ops:
    """A row, while it is added up."""

    count: int = 0
    host_ns: int = 0
    steps: int = 0
    """How often the program went the ways on which it ran."""
    ends: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    """The graphs before and after, by their places in the ledger."""


@dataclass(frozen=True)
class EagerRow:
    """An op of one line, between graphs of two owners."""

    line: str
    op: str
    per_step: float
    """How often, each time that the program goes from the one to the other."""
    host_ns: int
    """Host time each time."""
    total_ns: int
    before: str
    """The graphs that were replayed before: the name of one, or how many of an owner."""
    after: str


def breaks_of(
    between: Iterable[Between],
    counters: Sequence[tuple[int, int, int, int]],
    frame_indices: Callable[[Iterable[Frame]], tuple[int, ...]],
) -> list[EagerBreak]:
    """The ops of one process between its replays; graphs have the numbers of that process."""
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
    """The ops by line and by who captures the graphs around them, those that take longest first."""
    assert capture.ledger is not None
    graphs = capture.ledger.graphs
    rows: dict[tuple[str, ...], _Ops] = defaultdict(_Ops)
    for way in breaks:
        owners = graphs[way.before].owner, graphs[way.after].owner
        ways: set[tuple[str, ...]] = set()
        for op in way.ops:
            line = file_line(place_of(tuple(capture.frames[frame] for frame in op.frames)))
            key = line, op.op or "other ops", *owners
            ops = rows[key]
            ops.count += op.count
            ops.host_ns += op.host_ns
            ops.ends[0].add(way.before)
            ops.ends[1].add(way.after)
            ops.steps += 0 if key in ways else way.times
            ways.add(key)
    return tuple(
        EagerRow(
            line,
            op,
            ops.count / max(ops.steps, 1),
            ops.host_ns // max(ops.steps, 1),
            ops.host_ns,
            *(_name([graphs[place] for place in sorted(end)]) for end in ops.ends),
        )
        for (line, op, *_), ops in sorted(rows.items(), key=lambda row: -row[1].host_ns)
    )


def _name(graphs: Sequence[LedgerGraph]) -> str:
    """The name of one graph, or of several that have one owner."""
    first, *others = graphs
    if others:
        return f"{first.owner}, {len(graphs):,} graphs"
    number = "" if first.graph is None else str(first.graph)
    if first.key and first.owner != CALLABLES:
        number = ""
    return " ".join(filter(None, (first.owner, first.key, number)))
