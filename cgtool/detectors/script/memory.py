"""Memory that a script's graphs reserve and never use, or keep after their end."""

from __future__ import annotations

from collections import defaultdict

from cgtool.detectors.preflight import allocator_setting
from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.script import events
from cgtool.observe.script.state import PoolId, WatchedGraph
from cgtool.torch_compat.allocator import memory_segments

CAPTURE_ORDER_WASTES_POOL = code("capture-order-wastes-pool")
EXPANDABLE_SEGMENTS_SURPRISES = code("expandable-segments-surprises")
LEAK_AFTER_FAILED_CAPTURE = code("leak-after-failed-capture")
PRIVATE_POOL_BLOAT = code("private-pool-bloat")
SAME_STREAM_CUBLAS_WORKSPACE = code("same-stream-cublas-workspace")
TEARDOWN_USE_AFTER_FREE = code("teardown-use-after-free")

_WORTH_BYTES = 16 << 20
"""Below this nobody would act."""
_MANY_POOLS = 4
_MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear")


class Pools(Detector):
    """Pools that could be shared, orders that waste memory, leaks."""

    def start(self) -> None:
        self._total_bytes: dict[PoolId, int] = {}
        """After the last capture."""
        self._growth: dict[PoolId, list[tuple[WatchedGraph, int]]] = defaultdict(list)
        """Bytes that each capture added."""

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        pool = event.graph.pool
        if pool is not None:
            total = self.script.device.pool_bytes(pool)
            self._growth[pool].append((event.graph, total - self._total_bytes.get(pool, 0)))
            self._total_bytes[pool] = total

    def on_capture_failed(self, event: events.CaptureFailed) -> None:
        frames = event.graph.frames
        attempts = self.script.graphs_by_place()[frames]
        if sum(graph.state == "failed" for graph in attempts) == 2:
            self.report(
                LEAK_AFTER_FAILED_CAPTURE,
                "a capture that failed is tried again; each attempt leaves its pool reserved",
                frames,
            )

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        self._look_at_private_pools()
        for growth in self._growth.values():
            self._look_at_order(growth)

    def _look_at_private_pools(self) -> None:
        graphs = [
            graph for graph in self.script.replayable() if graph.own_pool and graph.callable is None
        ]
        sizes = [self._total_bytes.get(graph.pool, 0) for graph in graphs if graph.pool is not None]
        outputs = sum(self._output_bytes(graph) for graph in graphs)
        spare = sum(sizes) - max(sizes, default=0) - outputs
        if len(graphs) >= _MANY_POOLS and spare >= _WORTH_BYTES:
            self.report(
                PRIVATE_POOL_BLOAT,
                f"{len(graphs)} graphs have private pools, {sum(sizes) >> 20} MiB in total",
                graphs[-1].frames,
                evidence=(f"one shared pool would save about {spare >> 20} MiB",),
            )

    def _look_at_order(self, growth: list[tuple[WatchedGraph, int]]) -> None:
        graphs = [graph for graph, _ in growth]
        sizes = [size for _, size in growth]
        if len(graphs) < 3 or any(graph.callable is not None for graph in graphs):
            return
        # A stream does not reuse the blocks of another one, in whatever order they capture.
        if len({graph.stream for graph in graphs}) > 1:
            return
        total = sum(sizes)
        waste = total - max(sizes) - sum(self._output_bytes(graph) for graph in graphs)
        if sizes[-1] == max(sizes) and waste >= _WORTH_BYTES and waste * 4 >= total:
            self.report(
                CAPTURE_ORDER_WASTES_POOL,
                f"the pool grows with each capture, to {total >> 20} MiB: the large graphs cannot "
                "use the blocks of the small ones",
                graphs[-1].frames,
                evidence=(f"largest first would take about {(total - waste) >> 20} MiB",),
            )

    def _output_bytes(self, graph: WatchedGraph) -> int:
        """Bytes of a graph's outputs, which no other arrangement saves."""
        return sum(
            buffer.bytes
            for buffer in graph.allocated.values()
            if not self.script.device.is_dead(buffer.ref)
        )


class Workspaces(Detector):
    """Workspaces of cuBLAS that two graphs share."""

    def start(self) -> None:
        self._dropped: dict[WatchedGraph, WatchedGraph] = {}
        """By a graph that can be replayed: one of the same stream that has been destroyed since."""
        self._suspects: dict[WatchedGraph, WatchedGraph] = {}
        """The graphs in ``_dropped`` that were replayed nevertheless."""

    def on_graph_dropped(self, event: events.GraphDropped) -> None:
        gone = event.graph
        if not gone.has_op(*_MATMULS):
            return
        for graph in self.script.replayable():
            if (
                graph is not gone
                and (graph.stream, graph.has_op(*_MATMULS)) == (gone.stream, True)
                and graph.pool != gone.pool
            ):
                self._dropped.setdefault(graph, gone)

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        gone = self._dropped.get(event.graph)
        if gone is not None:
            self._suspects.setdefault(event.graph, gone)

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        if not self._suspects or not self.script.device.reset_frees_workspaces():
            return
        for graph, gone in self._suspects.items():
            self.report(
                SAME_STREAM_CUBLAS_WORKSPACE,
                f"{graph.name} and {gone.name}, which is destroyed, were captured on one stream "
                "into different pools: they share a cuBLAS workspace",
                max(gone, graph, key=lambda either: either.number).frames,
                phase="replay",
                graphs=(graph, gone),
            )


class Segments(Detector):
    """Pools without the segments that the settings of the allocator ask for."""

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        graph = event.graph
        _, setting = allocator_setting()
        if "expandable_segments:True" not in setting or self.script.device.simulated:
            return
        segments = [
            segment
            for segment in memory_segments()
            if tuple(segment.get("segment_pool_id", ())) == graph.pool
        ]
        if segments and not any(segment.get("is_expandable") for segment in segments):
            self.report(
                EXPANDABLE_SEGMENTS_SURPRISES,
                "the settings of the allocator ask for expandable segments, and the pool of the "
                "graph has none",
                graph.frames,
                evidence=(setting,),
                phase="capture",
            )


class Remains(Detector):
    """Memory of a graph that is given back while its last replay may still run."""

    def start(self) -> None:
        self._running: list[tuple[WatchedGraph, Frames]] = []
        """Graphs that were dropped while their last replay could still run, and where."""

    def on_graph_dropped(self, event: events.GraphDropped) -> None:
        if self._may_run(event.graph):
            self._running.append((event.graph, self.script.place()))

    def _may_run(self, graph: WatchedGraph) -> bool:
        last = graph.last_replay
        return last is not None and not self.script.order.done(last.stream, last.tick)

    def on_cache_emptied(self, _event: events.CacheEmptied) -> None:
        for graph, frames in self._running:
            if self._may_run(graph):
                self.report(
                    TEARDOWN_USE_AFTER_FREE,
                    "the graph is destroyed while its last replay may still run, and its memory is "
                    "given back",
                    frames,
                )
        self._running.clear()
