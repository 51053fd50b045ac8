"""Memory and times of both captures, side by side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from statistics import median

from msgspec import structs

from cgtool.analysis.diff.graphs import Matched
from cgtool.analysis.diff.report import Figure, LineTime
from cgtool.analysis.graph.places import Places, file_line
from cgtool.analysis.memory.pools import live_bytes, reserved_bytes
from cgtool.analysis.timing.gaps import own_time
from cgtool.model.capture import Capture, Graph

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
            rows.append(Figure(made.graph.name, "nodes", _nodes(made.a), _nodes(made.b)))
            replays = _replay(a, made.which[0]), _replay(b, made.which[1])
            rows.append(Figure(made.graph.name, "replay", *replays))
    ours, theirs = _bench(a), _bench(b)
    rows += [
        Figure(phase, f"{name} in bench", value, theirs.get((phase, name)))
        for (phase, name), value in ours.items()
    ]
    return tuple(row for row in rows if row.a is not None and row.b is not None)


def _nodes(graph: Graph) -> int | None:
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
        if made.a is None or made.b is None or not (_nodes(made.a) and _nodes(made.b)):
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
