"""What is not the same in two captures.

A difference is what a replay would do differently: nodes, kernels, sizes, streams, dependencies,
and the bytes of the pools. Where the same work comes from (line, function, module) is none; nor are
times and what the driver takes for itself, in which two captures of the same code differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from statistics import median

from msgspec import structs

from cgtool.analysis.diff.graphs import Matched, match
from cgtool.analysis.diff.pairing import Reader
from cgtool.analysis.diff.report import (
    ADDED,
    CHANGED,
    REMOVED,
    Diff,
    Figure,
    GraphRow,
    LineTime,
    Side,
)
from cgtool.analysis.diff.rows import Change, Lines, by_module, changes, edges
from cgtool.analysis.diff.sentence import sentence
from cgtool.analysis.graph.places import WORK, Places, file_line, module_at_depth
from cgtool.analysis.graph.summary import graph_findings
from cgtool.analysis.memory.pools import live_bytes, reserved_bytes
from cgtool.analysis.timing.gaps import own_time
from cgtool.model.capture import Capture, Graph
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


_ENVIRONMENT = (
    ("device", "GPU"),
    ("torch", "torch"),
    ("cuda_runtime", "CUDA"),
    ("driver", "driver"),
    ("allocator_config", "allocator settings"),
)


def notes(
    a: Capture,
    b: Capture,
    graphs: Sequence[Matched],
    every: Iterable[Change],
    memory: Iterable[Figure],
) -> Iterator[str]:
    """One sentence each."""
    yield from _environment(a, b)
    yield from _options(a, b)
    yield from _elsewhere(graphs)
    for made in graphs:
        if made.nodes.moved and not made.edges.moved:
            yield (
                f"{made.graph.name}: {_nodes(len(made.nodes.moved))} in another order of creation; "
                "what waits for what is the same"
            )
        if made.a is None or made.b is None:
            continue
        one, other = made.a.eager_launches, made.b.eager_launches
        if one is not None and other is not None and one != other:
            yield f"{made.graph.name}: eager made {one:,} launches in A, {other:,} in B"
    # Findings follow from pools, and from nodes that are no work of the device.
    if (
        any(row.a != row.b for row in memory if row.judged)
        or any(one.fact.type not in WORK for one in every)
        or any(made.a is None or made.b is None for made in graphs)
    ):
        yield from _one_sided(
            "finding",
            ((one.code, one.reason) for one in graph_findings(a)),
            ((one.code, one.reason) for one in graph_findings(b)),
        )
    yield from _one_sided(
        "note of the capture",
        ((one.code, one.text) for one in a.caveats),
        ((one.code, one.text) for one in b.caveats),
    )


def _environment(a: Capture, b: Capture) -> Iterator[str]:
    told = []
    for field, name in _ENVIRONMENT:
        one, other = getattr(a.environment, field), getattr(b.environment, field)
        if one != other:
            told.append(f"{name} {one or 'unknown'} in A, {other or 'unknown'} in B")
    if a.recorder != b.recorder:
        told.append(f"recorder {a.recorder or 'unknown'} in A, {b.recorder or 'unknown'} in B")
    if told:
        yield f"{'; '.join(told)}: kernels and sizes may differ for that alone"


def _options(a: Capture, b: Capture) -> Iterator[str]:
    ours, theirs = ({one.name: one.value for one in side.entry.options} for side in (a, b))
    for name in ours.keys() & theirs.keys() - {"device"}:
        # A command that lacks an option leaves it at None.
        if ours[name] != theirs[name] and "None" not in (ours[name], theirs[name]):
            yield f"captured with {name}={ours[name]} in A, {name}={theirs[name]} in B"


def _elsewhere(graphs: Sequence[Matched]) -> Iterator[str]:
    modules: Counter[tuple[str | None, str | None]] = Counter()
    for made in graphs:
        ours, theirs = made.facts_a.of, made.facts_b.of
        modules.update((ours[a].module, theirs[b].module) for a, b in made.elsewhere)
    renamed = [(pair, count) for pair, count in modules.most_common() if pair[0] != pair[1]]
    if renamed:
        ((before, after), _), *more = renamed
        rest = f" and {len(more)} more" if more else ""
        yield (
            f"{_nodes(sum(count for _, count in renamed))} do the same work from another module: "
            f"{module_at_depth(before, 99)} is now {module_at_depth(after, 99)}{rest}"
        )
    functions = modules.total() - sum(count for _, count in renamed)
    if functions:
        yield f"{_nodes(functions)} do the same work from another function"


def _one_sided(
    what: str, ours: Iterable[tuple[str, str]], theirs: Iterable[tuple[str, str]]
) -> Iterator[str]:
    before, after = dict(ours), dict(theirs)
    for side, one, other in (("A", before, after), ("B", after, before)):
        for code, text in one.items():
            if code not in other:
                yield f"{what} in {side} alone: {text} ({code})"


def _nodes(count: int) -> str:
    return f"{count:,} node{'' if count == 1 else 's'}"


_WORTH = 0.01
"""Of all time: a line whose time differs by less is not shown."""
_LINES = 10


def memory(a: Capture, b: Capture) -> tuple[Figure, ...]:
    """Bytes of every pool, by its name, and what the driver took for itself."""
    ours, theirs = _pools(a), _pools(b)
    rows = [
        Figure(f"pool {name}", what, ours.get(name, {}).get(what), theirs.get(name, {}).get(what))
        for name in ours | theirs
        for what in ("reserved", "peak", "live")
    ]
    rows = [structs.replace(row, judged=True) for row in rows]
    driver = _driver(a), _driver(b)
    if driver != (None, None):
        rows.append(Figure("driver", "executable graphs", *driver))
    return tuple(rows)


def _pools(capture: Capture) -> dict[str, dict[str, int]]:
    """The figures of ``cgtool pools`` for each pool; those of one name together."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    events: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in capture.memory.allocations:
        events[one.pool].append((one.allocated_at, one.bytes))
        if one.freed_at is not None:
            events[one.pool].append((one.freed_at, -one.bytes))
    for number, pool in enumerate(capture.memory.pools):
        row = found[pool.name]
        row["reserved"] += reserved_bytes(pool)
        row["live"] += live_bytes(pool)
        held = accumulate(change for _, change in sorted(events[number]))
        row["peak"] += max(held, default=0)
    return found


def _driver(capture: Capture) -> int | None:
    known = [graph.exec_bytes for graph in capture.graphs if graph.exec_bytes is not None]
    return sum(known) if known else None


def times(a: Capture, b: Capture, graphs: Sequence[Matched]) -> tuple[Figure, ...]:
    """Nanoseconds of the device, of what was timed on both sides: the nodes of a graph, its replay
    outside any profiler, and the phases of a bench (medians)."""
    rows = []
    for made in graphs:
        if made.a is not None and made.b is not None:
            rows.append(Figure(made.graph.name, "nodes", _nodes_ns(made.a), _nodes_ns(made.b)))
            replays = _replay(a, made.which[0]), _replay(b, made.which[1])
            rows.append(Figure(made.graph.name, "replay", *replays))
    ours, theirs = _bench(a), _bench(b)
    rows += [
        Figure(phase, f"{name} in bench", value, theirs.get((phase, name)))
        for (phase, name), value in ours.items()
    ]
    return tuple(row for row in rows if row.a is not None and row.b is not None)


def _nodes_ns(graph: Graph) -> int | None:
    known = [node.duration_ns for node in graph.nodes if node.duration_ns is not None]
    return sum(known) if known else None


def _replay(capture: Capture, graph: int | None) -> float | None:
    timed = capture.profile.graphs if capture.profile is not None else ()
    return own_time(next((one for one in timed if one.graph == graph), None))


def _bench(capture: Capture) -> dict[tuple[str, str], float]:
    rounds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in capture.bench.samples if capture.bench is not None else ():
        if one.name in ("eager", "replay"):
            rounds[one.phase, one.name] += one.device_ns
    return {key: median(values) for key, values in rounds.items() if values}


def times_by_line(
    graphs: Sequence[Matched], places_a: Places, places_b: Places
) -> tuple[LineTime, ...]:
    """Where the time of the nodes differs: ops and their lines, most first."""
    spent: dict[tuple[str | None, str | None], list[int]] = defaultdict(lambda: [0, 0])
    total = Counter[int]()
    for made in graphs:
        if made.a is None or made.b is None or not (_nodes_ns(made.a) and _nodes_ns(made.b)):
            continue
        nodes = made.nodes
        # A line that has shifted is one line.
        partner = {a: b for pairs in (nodes.same, nodes.alike, nodes.moved) for a, b in pairs}
        for side, graph in enumerate((made.a, made.b)):
            for node in graph.nodes:
                if side == 0 and node.id in partner:
                    place = places_b.of(made.b.nodes[partner[node.id]])
                else:
                    place = (places_b if side else places_a).of(node)
                key = place.op, file_line(place.line) or None
                spent[key][side] += node.duration_ns or 0
                total[side] += node.duration_ns or 0
    rows = [LineTime(op, line, one, other) for (op, line), (one, other) in spent.items()]
    worth = _WORTH * max(total.values(), default=0)
    rows = [row for row in rows if abs(row.b - row.a) >= max(worth, 1)]
    return tuple(sorted(rows, key=lambda row: -abs(row.b - row.a))[:_LINES])
