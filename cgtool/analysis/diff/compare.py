"""The differences between two captures.

A difference is what a replay would do differently: nodes, kernels, sizes, streams, dependencies,
and the bytes of the pools. Where the same work comes from (line, function, module) is none; nor are
times and what the driver takes for itself, in which two captures of the same code differ.

``graphs`` matches graphs and compares their edges; ``pairing`` says which node is which; ``rows``
groups what differs, and ``sentence`` sums it up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from statistics import median

import msgspec

from cgtool.analysis.diff.graphs import Matched, match
from cgtool.analysis.diff.pairing import ArgumentNumbers, Reader
from cgtool.analysis.diff.rows import (
    ADDED,
    CHANGED,
    REMOVED,
    Change,
    ChangeRow,
    EdgeRow,
    Figure,
    GraphChange,
    Lines,
    LineTime,
    ModuleChange,
    by_module,
    edges,
    find_changes,
)
from cgtool.analysis.diff.sentence import sentence
from cgtool.analysis.diff.values import ValuesDiff, compare_values
from cgtool.analysis.graph.places import WORK, Places, file_line, module_at_depth
from cgtool.analysis.graph.summary import graph_findings
from cgtool.analysis.pools import driver_bytes, pool_rows
from cgtool.analysis.timing.gaps import own_time
from cgtool.analysis.units import count_text, total_of
from cgtool.model.capture import Capture, Graph
from cgtool.model.failure import usage
from cgtool.model.ledger import Ledger, LedgerGraph

_WORTH = 0.01
"""Share of all time: a line whose time differs by less is not shown."""
_LINES = 10


class ComparedCapture(msgspec.Struct, frozen=True):
    """One of the two captures."""

    name: str
    """As the user gave it: a file or an ENTRY."""
    spec: str
    device: str
    torch: str
    nodes: int


class Diff(msgspec.Struct, frozen=True):
    """The whole comparison."""

    summary: str
    different: bool
    a: ComparedCapture
    b: ComparedCapture
    simulated: bool
    notes: tuple[str, ...]
    graphs: tuple[GraphChange, ...]
    modules: tuple[ModuleChange, ...]
    changes: tuple[ChangeRow, ...]
    """The rows with most nodes come first."""
    edges: tuple[EdgeRow, ...]
    memory: tuple[Figure, ...]
    times: tuple[Figure, ...]
    lines: tuple[LineTime, ...]
    """Lines whose time differs, the largest difference first."""
    program: tuple[Figure, ...] = ()
    """Counts of two runs of a program."""
    values: ValuesDiff | None = None
    """If both captures have values."""


def compare(a: Capture, b: Capture, *, names: tuple[str, str] = ("A", "B")) -> Diff:
    """Compare two captures, called by these names. Raises CgtoolError as ``compare_nodes``."""
    return compare_nodes(a, b, names=names)[0]


def compare_nodes(a: Capture, b: Capture, *, names: tuple[str, str]) -> tuple[Diff, list[Matched]]:
    """The comparison, and which graphs and nodes of the two were matched.

    Raises CgtoolError (exit 2) when one is of a GPU and the other of the simulated device: the
    nodes of the first are kernels, those of the second ops.
    """
    if a.environment.simulated != b.environment.simulated:
        device = (b if a.environment.simulated else a).environment.device
        simulated, real = names if a.environment.simulated else names[::-1]
        if not device:
            raise usage(
                f"{real} has no graphs: nothing was recorded on a device",
                why="PyTorch saw no GPU, or was not imported",
                fix=f"record both on the simulated device, like {simulated}",
            )
        raise usage(
            f"{simulated} was captured on the simulated device, {real} on {device}: they cannot "
            "be compared",
            why="the nodes of a graph on a GPU are kernels, copies and fills; on the simulated "
            "device they are ops",
            fix="capture both on the same kind of device: `cgtool capture ENTRY --device "
            "simulated` works everywhere",
        )
    # Files of earlier versions have no arguments.
    numbers: ArgumentNumbers | None = {} if a.argument_lists and b.argument_lists else None
    reader_a, reader_b = Reader(a, numbers), Reader(b, numbers)
    graphs = match(a, b, reader_a, reader_b)
    changes = find_changes(graphs)
    lines = Lines(a, b, changes, list(numbers or ()))
    rows = lines.rows(changes)
    figures = _memory(a, b)
    values = compare_values(a, b, graphs)
    diff = Diff(
        sentence(graphs, changes, lines, rows, figures, values),
        any(matched.different for matched in graphs)
        or (values is not None and values.first is not None)
        or any(row.judged and row.a != row.b for row in figures),
        _side(a, names[0]),
        _side(b, names[1]),
        a.environment.simulated,
        tuple(_notes(a, b, graphs, changes, figures)),
        tuple(map(_graph, graphs)),
        by_module(a, b, graphs, changes),
        tuple(rows),
        edges(graphs),
        figures,
        _times(a, b, graphs),
        _times_by_line(graphs, reader_a.places, reader_b.places),
        _program(a, b),
        values,
    )
    return diff, graphs


def _side(capture: Capture, name: str) -> ComparedCapture:
    environment = capture.environment
    count = sum(len(graph.nodes) for graph in capture.graphs)
    return ComparedCapture(name, capture.entry.spec, environment.device, environment.torch, count)


def _graph(matched: Matched) -> GraphChange:
    before, after = (
        None if graph is None else len(graph.nodes) for graph in (matched.a, matched.b)
    )
    change = ADDED if before is None else REMOVED if after is None else ""
    return GraphChange(
        matched.graph.name,
        matched.graph.phase,
        change or (CHANGED if matched.different else "same"),
        before,
        after,
        len(matched.nodes.removed),
        len(matched.nodes.added),
        len(matched.changed),
        len(matched.moved),
        len(matched.edges.gone),
        len(matched.edges.new),
    )


_SETTINGS = {
    "environment.device": "GPU",
    "environment.torch": "torch",
    "environment.cuda_runtime": "CUDA",
    "environment.driver": "driver",
    "environment.allocator_config": "allocator settings",
    "recorder": "recorder",
}


def _notes(
    a: Capture,
    b: Capture,
    graphs: Sequence[Matched],
    changes: Iterable[Change],
    memory: Iterable[Figure],
) -> Iterator[str]:
    """Notes that the reader needs, and differences that do not count: a sentence
    each."""
    settings = []
    for field, name in _SETTINGS.items():
        before, after = map(attrgetter(field), (a, b))
        if before != after:
            settings.append(f"{name} {before or 'unknown'} in A, {after or 'unknown'} in B")
    if settings:
        yield f"{'; '.join(settings)}: kernels and sizes may differ because of that"
    saved = [any(node.values for graph in side.graphs for node in graph.nodes) for side in (a, b)]
    if any(saved) and not all(saved):
        yield f"values are not compared: the capture {'AB'[saved.index(False)]} has none"
    without = [name for name, side in zip("AB", (a, b), strict=True) if not side.argument_lists]
    if any(side.argument_lists for side in (a, b)) and without:
        yield f"arguments of ops are not compared: the capture {without[0]} does not record them"
    for name, side in zip("AB", (a, b), strict=True):
        for reason in side.ledger.lost if side.ledger is not None else ():
            yield f"not recorded in {name}: {reason}"
    yield from _options(a, b)
    yield from _elsewhere(graphs)
    for matched in graphs:
        if matched.nodes.moved and not matched.edges.moved:
            yield (
                f"{matched.graph.name}: {count_text(len(matched.nodes.moved), 'node')} created in "
                "another order, with the same dependencies"
            )
        if matched.a is None or matched.b is None:
            continue
        before, after = matched.a.eager_launches, matched.b.eager_launches
        if before is not None and after is not None and before != after:
            yield f"{matched.graph.name}: eager made {before:,} launches in A, {after:,} in B"
    # Findings depend on pools, and on nodes that do no GPU work.
    if (
        any(row.a != row.b for row in memory if row.judged)
        or any(change.fact.type not in WORK for change in changes)
        or any(matched.a is None or matched.b is None for matched in graphs)
    ):
        findings: list[dict[str, str]] = [
            {row.code: row.reason for row in graph_findings(side)} for side in (a, b)
        ]
        yield from _one_sided("finding", *findings)
    caveats = [{caveat.code: caveat.text for caveat in side.caveats} for side in (a, b)]
    yield from _one_sided("note", *caveats)
    yield from (note for note in a.general_notes if note in b.general_notes)


def _options(a: Capture, b: Capture) -> Iterator[str]:
    ours, theirs = ({option.name: option.value for option in side.entry.options} for side in (a, b))
    for name in ours.keys() & theirs.keys() - {"device"}:
        # An option that a command does not have is None.
        if ours[name] != theirs[name] and "None" not in (ours[name], theirs[name]):
            yield f"captured with {name}={ours[name]} in A, {name}={theirs[name]} in B"


def _elsewhere(graphs: Sequence[Matched]) -> Iterator[str]:
    modules: Counter[tuple[str | None, str | None]] = Counter()
    for matched in graphs:
        ours, theirs = matched.facts_a.of, matched.facts_b.of
        modules.update((ours[a].module, theirs[b].module) for a, b in matched.elsewhere)
    renamed = [(pair, count) for pair, count in modules.most_common() if pair[0] != pair[1]]
    if renamed:
        ((before, after), _), *more = renamed
        moved = _same_work(sum(count for _, count in renamed))
        now = f"{module_at_depth(before)} is now {module_at_depth(after)}"
        rest = f" and {len(more)} more" if more else ""
        yield f"{moved} from another module: {now}{rest}"
    functions = modules.total() - sum(count for _, count in renamed)
    if functions:
        yield f"{_same_work(functions)} from another function"


def _same_work(nodes: int) -> str:
    return "1 node does the same work" if nodes == 1 else f"{nodes} nodes do the same work"


def _one_sided(noun: str, in_a: dict[str, str], in_b: dict[str, str]) -> Iterator[str]:
    for side, own, other in (("A", in_a, in_b), ("B", in_b, in_a)):
        for code, text in own.items():
            if code not in other:
                yield f"{noun} only in {side}: {text}" + (f" ({code})" if code != noun else "")


def _memory(a: Capture, b: Capture) -> tuple[Figure, ...]:
    """Bytes of every pool, by its name, and of the driver."""
    ours, theirs = _pool_bytes(a), _pool_bytes(b)
    rows = [
        Figure(f"pool {name}", kind, ours.get((name, kind)), theirs.get((name, kind)), judged=True)
        for name, kind in ours | theirs
    ]
    driver = driver_bytes(a.graphs), driver_bytes(b.graphs)
    if driver != (None, None):
        rows.append(Figure("driver", "executable graphs", *driver))
    return tuple(rows)


_COUNTS: Sequence[tuple[str, Callable[[LedgerGraph], int | None]]] = (
    ("graphs", lambda entry: entry.failure is None),
    ("replays", lambda entry: entry.counted),
    ("captured again", lambda entry: entry.because is not None),
    ("never replayed", lambda entry: entry.is_unused),
    ("failed captures", lambda entry: entry.failure is not None),
)


def _program(a: Capture, b: Capture) -> tuple[Figure, ...]:
    """Counts of the ledgers of two runs; none for captures of an ENTRY."""
    if a.ledger is None or b.ledger is None:
        return ()

    def total(count: Callable[[LedgerGraph], int | None], ledger: Ledger) -> int | None:
        """None if that of a graph is not known."""
        counts = [count(entry) for entry in ledger.graphs if not entry.holds_a_pool]
        known = [value for value in counts if value is not None]
        return sum(known) if len(known) == len(counts) else None

    return tuple(
        Figure("program", name, total(count, a.ledger), total(count, b.ledger))
        for name, count in _COUNTS
    )


def _pool_bytes(capture: Capture) -> dict[tuple[str, str], int]:
    """By name and kind; pools of one name together. `cgtool run` does not record their memory."""
    figures: dict[tuple[str, str], int] = defaultdict(int)
    for row in pool_rows(capture) if capture.ledger is None else ():
        figures[row.name, "reserved"] += row.reserved_bytes
        figures[row.name, "peak"] += row.peak_bytes
        figures[row.name, "live"] += row.live_bytes
    return figures


def _times(a: Capture, b: Capture, graphs: Sequence[Matched]) -> tuple[Figure, ...]:
    """Nanoseconds of the device, of what was timed on both sides: the nodes of a graph, its replay
    outside any profiler, and the phases of a bench (medians)."""
    rows = []
    for matched in graphs:
        if matched.a is not None and matched.b is not None:
            name, (which_a, which_b) = matched.graph.name, matched.which
            rows += [
                Figure(name, "nodes", _nodes_ns(matched.a), _nodes_ns(matched.b)),
                Figure(name, "replay", _replay(a, which_a), _replay(b, which_b)),
            ]
    ours, theirs = _bench(a), _bench(b)
    rows += [
        Figure(phase, f"{name} in bench", value, theirs.get((phase, name)))
        for (phase, name), value in ours.items()
    ]
    return tuple(row for row in rows if row.a is not None and row.b is not None)


def _nodes_ns(graph: Graph) -> int | None:
    return total_of(node.duration_ns for node in graph.nodes)


def _replay(capture: Capture, graph: int | None) -> float | None:
    timed = capture.profile.graphs if capture.profile is not None else ()
    return own_time(next((each for each in timed if each.graph == graph), None))


def _bench(capture: Capture) -> dict[tuple[str, str], float]:
    rounds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for samples in capture.bench.samples if capture.bench is not None else ():
        if samples.name in ("eager", "replay"):
            rounds[samples.phase, samples.name] += samples.device_ns
    return {key: median(values) for key, values in rounds.items() if values}


def _times_by_line(
    graphs: Sequence[Matched], places_a: Places, places_b: Places
) -> tuple[LineTime, ...]:
    """Where the time of the nodes differs: ops and their lines, most first."""
    spent: dict[tuple[str | None, str | None], list[int]] = defaultdict(lambda: [0, 0])
    for matched in graphs:
        if matched.a is None or matched.b is None:
            continue
        if not (_nodes_ns(matched.a) and _nodes_ns(matched.b)):
            continue
        # A line that has shifted is one line.
        partner = dict(matched.nodes.matched)
        for side, graph in enumerate((matched.a, matched.b)):
            for node in graph.nodes:
                place = (places_a, places_b)[side].of(node)
                if side == 0 and node.id in partner:
                    place = places_b.of(matched.b.nodes[partner[node.id]])
                spent[place.op, file_line(place.line) or None][side] += node.duration_ns or 0
    rows = [LineTime(op, line, before, after) for (op, line), (before, after) in spent.items()]
    worth = _WORTH * max(sum(row.a for row in rows), sum(row.b for row in rows))
    rows = [row for row in rows if abs(row.b - row.a) >= max(worth, 1)]
    return tuple(sorted(rows, key=lambda row: -abs(row.b - row.a))[:_LINES])
