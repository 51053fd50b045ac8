"""Graphs that cannot be faster: waits after each replay, captures for each use, tiny graphs."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import torch

from cgtool.detectors.script.check import Check
from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.observe.script.state import Op, WatchedGraph
from cgtool.torch_compat.private import is_profiler_enabled

CAPTURE_TIME_NOT_AMORTISED = code("capture-time-not-amortised")
FIRST_REPLAY_LATENCY = code("first-replay-latency")
INPUT_COPY_DOMINATES = code("input-copy-dominates")
PADDING_WASTE = code("padding-waste")
PROFILER_BLIND_INSIDE_GRAPH = code("profiler-blind-inside-graph")
REPLAY_PLUS_HOST_SYNC_STALL = code("replay-plus-host-sync-stall")
TOO_MANY_SMALL_GRAPHS = code("too-many-small-graphs")

_WAITS = 10
"""Replays in a row, each followed by a wait of the host in one line."""
PER_STEP_SYNC_AROUND_REPLAY = code("per-step-sync-around-replay")
_RECAPTURES = 5
_SMALL = 8
"""Ops of a graph that costs as much to launch as it saves."""
_IN_A_ROW = 16
_REPLAYS = 3
_COPY = 8 << 20
_PADDING = 8
"""One real row in so many."""


class Waits(Check):
    """``per-step-sync-around-replay``."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._since_replay = False
        self._collective = False
        self._count: Counter[tuple[Frame, ...]] = Counter()
        self._last: tuple[Frame, ...] | None = None

    def replayed(self, graph: WatchedGraph) -> None:
        if self._since_replay:
            self._count.clear()
        self._since_replay = True
        self._collective = any(one.name.startswith("c10d::") for one in graph.record.calls)

    def waited(self, why: str, tensor: Any) -> None:
        if not self._since_replay:
            return
        self._since_replay = False
        place = self.watch.place()
        self._count[place] += 1
        if self._count[place] == _WAITS:
            self.watch.report(
                REPLAY_PLUS_HOST_SYNC_STALL if self._collective else PER_STEP_SYNC_AROUND_REPLAY,
                f"the host waits for the device after every replay ({why}): the device idles until "
                "the next one is launched",
                place,
                phase="script",
                evidence=(f"{_WAITS} replays in a row",),
            )


class Launches(Check):
    """``too-many-small-graphs``, ``first-replay-latency``, ``profiler-blind-inside-graph``."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._row: list[WatchedGraph] = []
        self._rounds: Counter[tuple[Frame, ...]] = Counter()

    def eager(self, op: Op) -> None:
        self._row.clear()

    def replaying(self, graph: WatchedGraph) -> None:
        place = self.watch.place()
        late = graph.keeps and not graph.instantiated and graph.replays == 0
        if late and graph.device_ops > _SMALL:
            self.watch.report(
                FIRST_REPLAY_LATENCY,
                "the first replay instantiates the graph, which was made with keep_graph=True",
                place,
                phase="replay",
            )
        if is_profiler_enabled():
            self.watch.report(
                PROFILER_BLIND_INSIDE_GRAPH,
                "a profiler runs: it sees the launch of the graph, and no op or line inside it",
                place,
                phase="replay",
            )

    def replayed(self, graph: WatchedGraph) -> None:
        if graph.device_ops > _SMALL or graph in self._row:
            self._row.clear()
        if graph.device_ops <= _SMALL:
            self._row.append(graph)
        if len(self._row) == _IN_A_ROW:
            self._rounds[graph.frames] += 1
            if self._rounds[graph.frames] == 2:
                sizes = Counter(one.device_ops for one in self._row)
                self.watch.report(
                    TOO_MANY_SMALL_GRAPHS,
                    f"{_IN_A_ROW} graphs of at most {max(sizes)} ops each are replayed in a row",
                    graph.frames,
                    phase="script",
                )


class Captures(Check):
    """``capture-time-not-amortised``: the same capture again for each use."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._by_place: dict[tuple[Frame, ...], list[WatchedGraph]] = defaultdict(list)

    def begun(self, graph: WatchedGraph) -> None:
        self._by_place[graph.frames].append(graph)

    def finish(self) -> None:
        for place, graphs in self._by_place.items():
            done = [one for one in graphs if one.state in ("captured", "dropped")]
            if any(one.live() for one in done[:-1]):
                continue
            if len(done) < _RECAPTURES or len({_signature(one) for one in done}) > 1:
                continue
            used = all(
                one.replays <= 1 and (one.last is None or one.last.at <= after.began)
                for one, after in pairwise(done)
            )
            if used:
                self.watch.report(
                    CAPTURE_TIME_NOT_AMORTISED,
                    f"{len(done)} captures of the same ops on the same shapes, each replayed at "
                    "most once",
                    place,
                    phase="script",
                )


def _signature(graph: WatchedGraph) -> tuple[Any, ...]:
    names = tuple(call.name for call in graph.record.calls)
    return names, tuple(one.shape for one in graph.reads.values())


class Feeding(Check):
    """``input-copy-dominates`` and ``padding-waste``."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._copied: dict[int, tuple[int, tuple[Frame, ...]]] = {}
        """Bytes copied into each storage since the last replay."""
        self._rows: dict[int, tuple[int, int]] = {}
        """Rows written from the first on, of how many."""
        self._heavy: Counter[int] = Counter()
        self._padded: Counter[int] = Counter()

    def eager(self, op: Op) -> None:
        if not op.name.startswith("aten::copy_") or not isinstance(op.args[0], torch.Tensor):
            return
        target = op.args[0]
        cell = self.watch.cells.find(target)
        if cell is None or cell.place != "device" or not target.dim():
            return
        size = target.numel() * target.element_size()
        self._copied[cell.key] = (size, self.watch.place())
        for graph in self.watch.alive():
            read = graph.reads.get(cell.key)
            if read is not None and read.shape and target.data_ptr() == read.data_ptr:
                self._rows[cell.key] = (int(target.shape[0]), read.shape[0])

    def replayed(self, graph: WatchedGraph) -> None:
        fed = [(key, *self._copied.pop(key)) for key in graph.reads if key in self._copied]
        size = sum(one for _, one, _ in fed)
        if size >= _COPY and graph.device_ops <= 2:
            self._heavy[graph.number] += 1
            if self._heavy[graph.number] == _REPLAYS:
                place = max(fed, key=lambda one: one[1])[2]
                self.watch.report(
                    INPUT_COPY_DOMINATES,
                    f"{size >> 20} MiB are copied for a graph of {graph.device_ops} ops",
                    place,
                    phase="script",
                )
        rows = [self._rows.pop(key) for key in graph.reads if key in self._rows]
        if rows and all(0 < real * _PADDING <= size for real, size in rows):
            self._padded[graph.number] += 1
            if self._padded[graph.number] == _REPLAYS and graph.last is not None:
                real, size = max(rows, key=lambda one: one[1])
                self.watch.report(
                    PADDING_WASTE,
                    f"{real} of {size} rows are real: the graph computes them all",
                    graph.last.frames,
                    phase="script",
                )
