"""When nodes ran in a replay, and the gaps between them.

A profiler does not change a node's own time, but it makes the gaps between nodes longer. So traced
gaps are scaled: to a replay without a profiler, less the time in which nodes ran, less what a graph
of a single kernel takes before and after its node.
"""

from __future__ import annotations

from heapq import heappop, heappush
from statistics import median

import msgspec

from cgtool.analysis.graph.places import WORK
from cgtool.analysis.timing.stats import spread
from cgtool.model.capture import Capture, Graph
from cgtool.model.measurements import GraphTimes

SHOWN = 5
"""How many of the longest gaps a report names."""


class Gap(msgspec.Struct, frozen=True):
    """A time in which no node of the graph ran."""

    graph: int
    after: int
    """Id of the node that ended last before it; ``before``: of the node that ended it."""
    before: int
    traced_ns: int
    ns: float
    """``traced_ns`` scaled to a replay without a profiler."""


class Timeline(msgspec.Struct, frozen=True):
    """One graph in time. ``replay_ns`` is ``busy_ns`` and ``gaps_ns`` and ``around_ns``."""

    graph: int
    """Index into ``Capture.graphs``."""
    name: str
    nodes: int
    """Nodes that do work on the device."""
    timed: int
    """How many of those have a time."""
    replay_ns: float | None
    """One replay without a profiler: median, less what two events without anything between them
    take. None if that was not measured."""
    replay_spread: float | None
    """Relative half-width of the middle half of its samples."""
    span_ns: int | None
    """Under the profiler: first start of a node to last end. None if no start is known."""
    busy_ns: int
    """Time in which some node ran."""
    work_ns: int
    """Sum of the nodes' times: more than ``busy_ns`` where nodes ran at the same time."""
    at_once: int
    """Most nodes that ran at the same time."""
    gaps_ns: float
    """Idle time between nodes, without a profiler."""
    around_ns: float
    """Time before the first node and after the last, as far as it can be separated from gaps."""
    scale: float
    """The factor that traced gaps are multiplied by."""
    gap_count: int
    gap_median_ns: float | None
    """Median of all gaps, scaled."""
    gaps: tuple[Gap, ...]
    """The longest first, as many as were requested."""

    @property
    def total_ns(self) -> float:
        """The time that shares refer to: the replay without a profiler, or the best known."""
        return self.replay_ns or self.span_ns or self.work_ns

    @property
    def idle_ns(self) -> float:
        """No node ran."""
        return self.gaps_ns + self.around_ns


_LAUNCH_BOUND = 1.05
"""A loop takes longer than this many times a replay by itself: its replays wait for the host."""


def own_time(times: GraphTimes | None) -> float | None:
    """One replay without a profiler, in nanoseconds; None if there is no sample.

    It is the period of a loop of replays, as in ``bench``. If the host launches them too slowly for
    that, it is a single replay that was launched while the device was busy; on an H200, these are
    up to 2% shorter, since each follows an idle device.
    """
    if times is None or not times.replay_ns:
        return None
    empty = median(times.empty_ns) if times.empty_ns else 0.0
    alone = max(median(times.replay_ns) - empty, 0.0)
    if times.queued_ns is not None and times.queued_ns <= _LAUNCH_BOUND * alone:
        return times.queued_ns
    return alone or None


def timeline_of(capture: Capture, index: int, *, shown: int = SHOWN) -> Timeline:
    """The time line of ``capture.graphs[index]``, with its longest gaps. Linear but for a sort."""
    graph = capture.graphs[index]
    known = capture.profile.graphs if capture.profile else ()
    times = next((each for each in known if each.graph == index), None)
    replay = own_time(times)
    timed = [node for node in graph.nodes if node.duration_ns is not None]
    work = sum(node.duration_ns or 0 for node in timed)
    traced, busy, span, at_once = _laid_out(graph)
    idle = span - busy if span is not None else 0
    left = 0.0 if replay is None else max(0.0, replay - busy)
    around = (capture.profile.around_ns if capture.profile else None) or 0.0
    scale = 1.0
    if replay is not None and idle > 0:
        scale = min(1.0, max(0.0, left - around) / idle)
    lengths = [gap[0] for gap in traced]
    longest = sorted(traced, key=lambda gap: -gap[0])[:shown]
    return Timeline(
        graph=index,
        name=graph.name,
        nodes=sum(node.type in WORK for node in graph.nodes),
        timed=len(timed),
        replay_ns=replay,
        replay_spread=spread(times.replay_ns) if times else None,
        span_ns=span,
        busy_ns=busy if span is not None else work,
        work_ns=work,
        at_once=at_once,
        gaps_ns=idle * scale,
        around_ns=max(0.0, left - idle * scale),
        scale=scale,
        gap_count=len(traced),
        gap_median_ns=median(lengths) * scale if lengths else None,
        gaps=tuple(
            Gap(index, after, before, length, length * scale) for length, after, before in longest
        ),
    )


def _laid_out(graph: Graph) -> tuple[list[tuple[int, int, int]], int, int | None, int]:
    """Gaps as (length, node before, node after); busy time; span; most nodes at once."""
    placed = sorted(
        (node.start_ns, node.start_ns + node.duration_ns, node.id)
        for node in graph.nodes
        if node.start_ns is not None and node.duration_ns is not None
    )
    if not placed:
        return [], 0, None, 0
    first, reach, last = placed[0][0], placed[0][0], placed[0][2]
    gaps: list[tuple[int, int, int]] = []
    running: list[int] = []
    busy = at_once = 0
    for start, end, node in placed:
        if start > reach:
            gaps.append((start - reach, last, node))
        if end > reach:
            busy += end - max(start, reach)
            reach, last = end, node
        while running and running[0] <= start:
            heappop(running)
        if end > start:
            heappush(running, end)
        at_once = max(at_once, len(running))
    return gaps, busy, reach - first, at_once
