"""The report of ``cgtool profile``: the verdict, the replays, and where their time goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from cgtool.analysis.graph.overlap import Overlap, find_overlap, overlap_findings
from cgtool.analysis.graph.places import Place, Places, file_line
from cgtool.analysis.graph.schedule import CriticalPath, critical_path
from cgtool.analysis.reports import quoted
from cgtool.analysis.timing import gain, gaps, roofline
from cgtool.analysis.timing.gain import Gain
from cgtool.analysis.timing.gaps import Gap, Timeline
from cgtool.analysis.timing.roofline import GraphBound
from cgtool.analysis.timing.time_tables import BY, LINE, MODULE, TimeTable, TimeTables
from cgtool.model.capture import Capture, Caveat
from cgtool.model.measurements import GraphTimes, Peak

OVERVIEW = {LINE: 10, MODULE: 10}
"""TimeTables of the first screen, with their number of rows."""
_ON_PATH = 3
"""How many ops of a critical path are named."""
_NEARLY_ALL = 0.95
"""A critical path with a larger share of the work is not described."""
_STANDS_OUT, _WORTH, _FEW = 3.0, 0.01, 3
"""A gap is shown if it is so many times the median and such a share of the replay, or if the graph
has no more than so few."""


class ReplayCosts(msgspec.Struct, frozen=True):
    """The cost of one replay of a graph on the host and around it, in nanoseconds."""

    launch_ns: float | None
    """Host time of one replay() on an idle stream, median."""
    queued_ns: float | None = None
    """Wall time of one of many replays, back to back."""
    synced_ns: float | None = None
    """Wall time of one replay and a synchronize, median."""
    first_ns: float | None = None
    """Wall time of the first replay, with its upload and a synchronize."""
    traced_ns: float | None = None
    """First start to last end under the profiler, median."""


class GapRow(msgspec.Struct, frozen=True):
    """A gap, and the nodes around it."""

    gap: Gap
    graph: str
    after: str
    """Op and line of the node that ended last before it; ``before``: of the one that ended it."""
    before: str
    waits_for: int
    """Nodes that ``before`` waits for directly."""
    over: str | None
    """Type of a node between that is not timed: ``host``, ``event_wait``, ..."""


class PathRow(msgspec.Struct, frozen=True):
    """The cost of a graph's order."""

    path: CriticalPath
    overlap: Overlap
    on_path: tuple[tuple[str, int], ...]
    """Op and line with their time on the critical path, the most first."""


class ReplayRow(msgspec.Struct, frozen=True):
    """One replay of a graph, or of all graphs together."""

    name: str
    nodes: int
    total_ns: float
    busy: float
    """Share of ``total_ns`` in which some node runs; ``idle``: in which none does."""
    idle: float
    costs: ReplayCosts


class OrderRow(msgspec.Struct, frozen=True):
    """The critical path of one graph, and the most that overlapping could gain."""

    name: str
    length_ns: int
    """The length of the critical path; ``share``: of the time of all nodes."""
    share: float
    at_once: int
    overlapped_ns: int
    gain_ns: int
    gain: float
    """A share of the critical path."""
    on_path: tuple[tuple[str, int], ...]
    """Ops with most of the time on the critical path, where it is not nearly all of the work."""


class ProfileReport(msgspec.Struct, frozen=True):
    """The whole screen. Tuples hold an element for each graph that is replayed."""

    spec: str
    device: str
    route: str | None
    """How nodes were timed: ``cupti``, ``profiler``; None if only ``capture --times`` did."""
    gain: Gain
    replays: tuple[Timeline, ...]
    costs: tuple[ReplayCosts, ...]
    bounds: tuple[GraphBound, ...]
    paths: tuple[PathRow, ...]
    gaps: tuple[GapRow, ...]
    """The remarkable gaps of all graphs, the longest first."""
    tables: tuple[TimeTable, ...]
    total_ns: float
    """One replay of each graph: what the shares in the tables refer to."""
    idle_ns: float
    """The part of it in which no node ran."""
    untimed: int
    memory_bytes_per_s: float | None
    peaks: tuple[Peak, ...]
    caveats: tuple[Caveat, ...]

    @property
    def replay_rows(self) -> tuple[ReplayRow, ...]:
        """One row per graph; if there are several, one more for all together."""
        times = [
            (line.name, line.nodes, line.total_ns, line.busy_ns, line.idle_ns, costs)
            for line, costs in zip(self.replays, self.costs, strict=True)
        ]
        if len(times) > 1:
            launches = [costs.launch_ns for costs in self.costs if costs.launch_ns is not None]
            launch_ns = sum(launches) if len(launches) == len(times) else None
            nodes = sum(line.nodes for line in self.replays)
            busy_ns = sum(line.busy_ns for line in self.replays)
            costs = ReplayCosts(launch_ns)
            times.append(("together", nodes, self.total_ns, busy_ns, self.idle_ns, costs))
        return tuple(
            ReplayRow(name, nodes, total, min(1.0, busy / (total or 1)), idle / (total or 1), costs)
            for name, nodes, total, busy, idle, costs in times
        )

    @property
    def order_rows(self) -> tuple[OrderRow, ...]:
        """The graphs whose nodes were timed."""
        return tuple(
            OrderRow(
                line.name,
                row.path.length_ns,
                row.path.length_ns / (line.work_ns or 1),
                line.at_once,
                max(0, line.work_ns - line.busy_ns),
                row.overlap.gain_ns,
                row.overlap.gain,
                row.on_path if row.path.length_ns < _NEARLY_ALL * row.path.busy_ns else (),
            )
            for line, row in zip(self.replays, self.paths, strict=True)
            if row.path.timed
        )

    @property
    def tracing_overhead(self) -> tuple[tuple[str, float], ...]:
        """By graph, how much longer a replay was under the profiler than without: 0.05 is 5%."""
        return tuple(
            (line.name, line.span_ns / line.replay_ns - 1)
            for line in self.replays
            if line.replay_ns and line.span_ns
        )


def has_times(capture: Capture) -> bool:
    """Whether any node was timed."""
    return any(node.duration_ns is not None for graph in capture.graphs for node in graph.nodes)


def profile_report(
    capture: Capture,
    *,
    by: str | None = None,
    top: int | None = None,
    depth: int | None = None,
    whole: bool = False,
    tables: bool = True,
) -> ProfileReport:
    """The report of a capture that has times.

    One table, ``by`` line, module, op, kernel or node, or the overview of lines and modules;
    ``top`` rows of each. ``whole``: every table, all rows, unless ``by`` and ``top`` say otherwise;
    without ``tables``, none.
    """
    top_level = [index for index, graph in enumerate(capture.graphs) if graph.parent is None]
    lines = [gaps.timeline_of(capture, index) for index in top_level]
    used = [roofline.utilizations(capture, graph) for graph in capture.graphs]
    paths = [critical_path(capture, index) for index in top_level]
    overlaps = [find_overlap(capture, index) for index in top_level]
    total = sum(row.total_ns for row in lines)
    grouped = TimeTables(capture, used, total)
    places = Places(capture)
    profile = capture.profile
    verdict = gain.judge(capture, lines, paths)
    longest = sorted((gap for line in lines for gap in _long(line)), key=lambda gap: -gap.ns)
    return ProfileReport(
        spec=capture.entry.spec,
        device=capture.environment.device,
        route=profile.route if profile else None,
        gain=msgspec.structs.replace(
            verdict,
            findings=quoted(
                (*verdict.findings, *overlap_findings(capture, overlaps)), capture.sources
            ),
        ),
        replays=tuple(lines),
        costs=tuple(_costs(capture, index) for index in top_level),
        bounds=tuple(roofline.judge(capture, bound, used[bound.graph]) for bound in lines),
        paths=tuple(
            PathRow(path, each, _on_path(capture, places, path))
            for path, each in zip(paths, overlaps, strict=True)
        ),
        gaps=tuple(_gap(capture, places, gap) for gap in longest[: gaps.SHOWN]),
        tables=tuple(
            grouped.table(name, top=rows, depth=depth)
            for name, rows in (_wanted(by, top, whole) if tables else ())
        ),
        total_ns=total,
        idle_ns=sum(line.idle_ns for line in lines),
        untimed=sum(line.nodes - line.timed for line in lines),
        memory_bytes_per_s=profile.memory_bytes_per_s if profile else None,
        peaks=profile.peaks if profile else (),
        caveats=capture.caveats,
    )


def _long(line: Timeline) -> Iterator[Gap]:
    """The remarkable gaps."""
    least = max(_STANDS_OUT * (line.gap_median_ns or 0.0), _WORTH * line.total_ns)
    return (gap for gap in line.gaps if gap.ns >= 1 and (gap.ns >= least or line.gap_count <= _FEW))


def _wanted(by: str | None, top: int | None, whole: bool) -> list[tuple[str, int | None]]:
    if whole:
        return [(table, top) for table in BY if by in (None, table)]
    if by is not None:
        return [(by, top or 20)]
    return [(table, top or rows) for table, rows in OVERVIEW.items()]


def _costs(capture: Capture, index: int) -> ReplayCosts:
    known = capture.profile.graphs if capture.profile else ()
    times = next((each for each in known if each.graph == index), GraphTimes(index))
    return ReplayCosts(
        launch_ns=_median(capture.graphs[index].launch_ns),
        queued_ns=times.queued_ns,
        synced_ns=_median(times.synced_ns),
        first_ns=times.first_ns,
        traced_ns=_median(times.traced_ns),
    )


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _words(place: Place) -> str:
    name = place.short_op or place.autograd_node or "a launch outside any op"
    return f"{name} {file_line(place.line)}".strip()


def _gap(capture: Capture, places: Places, gap: Gap) -> GapRow:
    graph = capture.graphs[gap.graph]
    sources = [graph.nodes[edge.source] for edge in graph.edges if edge.target == gap.before]
    idle = next((node.type for node in sources if node.duration_ns is None), None)
    after, before = (places.of(graph.nodes[node]) for node in (gap.after, gap.before))
    return GapRow(gap, graph.name, _words(after), _words(before), len(sources), idle)


def _on_path(capture: Capture, places: Places, path: CriticalPath) -> tuple[tuple[str, int], ...]:
    by_origin: Counter[int | None] = Counter()
    nodes = capture.graphs[path.graph].nodes
    for node in path.nodes:
        by_origin[nodes[node].origin] += nodes[node].duration_ns or 0
    times: Counter[str] = Counter()
    for origin, time in by_origin.items():
        times[_words(places.of_origin(origin))] += time
    return tuple(times.most_common(_ON_PATH))
