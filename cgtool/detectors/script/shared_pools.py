"""Graphs that share a pool, and overwrite what others of it have written."""

from __future__ import annotations

from bisect import bisect_left

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.frames import frames_of
from cgtool.observe.script import events
from cgtool.observe.script.state import Buffer, WatchedGraph

SHARED_POOL_CONCURRENT_REPLAY = code("shared-pool-concurrent-replay")
SHARED_POOL_REPLAY_ORDER = code("shared-pool-replay-order")

_IN_ORDER = (
    "call the callables in the order in which `make_graphed_callables` got them, or graph each by "
    "a call of its own"
)


class SharedPools(Detector):
    """Graphs that share a pool: replayed in another order, or at the same time."""

    phase = "replay"

    def start(self) -> None:
        self._overlaps: dict[tuple[int, int], list[Buffer]] = {}
        self._lost: dict[int, tuple[WatchedGraph, Frames]] = {}
        """By key of a buffer that another graph has overwritten: which graph, and where."""
        self._passed_on: set[int] = set()
        """The keys of what one graph has allocated and another one reads."""

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        uses = event.graph.external.values()
        self._passed_on.update(use.buffer.key for use in uses if use.buffer.allocated_in)

    def _sharing(self, graph: WatchedGraph) -> list[WatchedGraph]:
        if graph.pool is None:
            return []
        return [
            other
            for other in self.script.graphs
            if other is not graph and other.pool == graph.pool and other.allocated
        ]

    def _overlap(self, graph: WatchedGraph, other: WatchedGraph) -> list[Buffer]:
        """Buffers that the other graph allocated at addresses where this one writes."""
        key = graph.number, other.number
        if key not in self._overlaps:
            starts, ends = _spans(graph)
            self._overlaps[key] = []
            for buffer in other.allocated.values():
                before = bisect_left(starts, buffer.end)
                if before and ends[before - 1] > buffer.address:
                    self._overlaps[key].append(buffer)
        return self._overlaps[key]

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        for use in graph.external.values():
            self._look_at_read(use.buffer, graph)
        stream = self.script.device.stream()
        for other in self._sharing(graph):
            last = other.last_replay
            if last is None or self.script.order.before(last.stream, last.tick, stream):
                continue
            if self._overlap(graph, other):
                self.report(
                    SHARED_POOL_CONCURRENT_REPLAY,
                    f"{graph.name} and {other.name} share a pool, and nothing makes this replay "
                    "wait for the other graph's on another stream",
                    graphs=(graph, other),
                )

    def on_replay_ended(self, event: events.ReplayEnded) -> None:
        graph = event.graph
        for key in graph.allocated:
            self._lost.pop(key, None)
        frames = graph.last_replay.frames if graph.last_replay is not None else ()
        for other in self._sharing(graph):
            if other.replays:
                for buffer in self._overlap(graph, other):
                    if not buffer.ref.expired() or buffer.key in self._passed_on:
                        self._lost.setdefault(buffer.key, (graph, frames))

    def on_eager_op(self, event: events.EagerOp) -> None:
        if self._lost:
            for tensor in event.op.read:
                self._look_at_read(self.script.buffers.find(tensor))

    def on_host_waited(self, event: events.HostWaited) -> None:
        if self._lost and event.tensor is not None:
            self._look_at_read(self.script.buffers.find(event.tensor))

    def _look_at_read(self, buffer: Buffer | None, reader: WatchedGraph | None = None) -> None:
        """``reader``: the graph that reads it, if one does."""
        if buffer is None or buffer.key not in self._lost or buffer.allocated_in is None:
            return
        graph, frames = self._lost[buffer.key]
        if graph is reader:
            return  # a backward after two forwards (`callables`)
        maker = frames_of(buffer.allocated_by.chain) if buffer.allocated_by else ()
        computed = f", computed at {maker[0].short}" if maker else ""
        self.report(
            SHARED_POOL_REPLAY_ORDER,
            f"{graph.name} shares a pool with {buffer.allocated_in.name} and overwrites what that "
            "has written, which is read afterwards",
            frames,
            fix=None if graph.callable is None else _IN_ORDER,
            evidence=(
                f"{buffer.bytes} bytes at {buffer.address:#x}{computed}",
                *(f"read at {at.short}" for at in self.script.place()[:1]),
            ),
            graphs=(graph, buffer.allocated_in),
        )


def _spans(graph: WatchedGraph) -> tuple[list[int], list[int]]:
    """Starts and ends of the memory that a graph allocates, merged and in order."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted((buffer.address, buffer.end) for buffer in graph.allocated.values()):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends
