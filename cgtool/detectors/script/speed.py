"""Replays and captures that cost more than they save."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from cgtool.analysis.ledger_findings import compiled_findings
from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.script import events
from cgtool.observe.script.state import WatchedGraph
from cgtool.torch_compat.private import is_profiler_enabled

FIRST_REPLAY_LATENCY = code("first-replay-latency")
PER_STEP_SYNC_AROUND_REPLAY = code("per-step-sync-around-replay")
PROFILER_BLIND_INSIDE_GRAPH = code("profiler-blind-inside-graph")
REPLAY_PLUS_HOST_SYNC_STALL = code("replay-plus-host-sync-stall")
TOO_MANY_SMALL_GRAPHS = code("too-many-small-graphs")

_MIN_WAITS = 10
"""Replays, each followed by a host wait at one line."""
_SMALL_OPS = 8
"""A graph of so few ops costs as much to launch as it saves."""
_MIN_SMALL = 16


class Waits(Detector):
    """A host wait after every replay."""

    def start(self) -> None:
        self._replayed: WatchedGraph | None = None
        """The last replay, if nothing has waited since."""
        self._count: Counter[Frames] = Counter()

    def on_replay_ended(self, event: events.ReplayEnded) -> None:
        if self._replayed is not None:
            self._count.clear()
        self._replayed = event.graph

    def on_host_waited(self, event: events.HostWaited) -> None:
        graph = self._replayed
        last = None if graph is None else graph.last_replay
        if graph is None or last is None:
            return
        if not self.script.order.done(last.stream, last.tick):
            return  # it has waited for earlier work, such as the copy out of a slot of a ring
        self._replayed = None
        frames = self.script.place()
        self._count[frames] += 1
        if self._count[frames] == _MIN_WAITS:
            self.report(
                REPLAY_PLUS_HOST_SYNC_STALL
                if graph.has_op("c10d::")
                else PER_STEP_SYNC_AROUND_REPLAY,
                f"the host waits for the device after every replay (`{event.call}`): the device is "
                "idle until the next launch",
                frames,
                evidence=(f"after each of at least {_MIN_WAITS} replays",),
            )


class Launches(Detector):
    """Graphs too small to launch, instantiated late, or replayed under a profiler."""

    def start(self) -> None:
        self._row: list[WatchedGraph] = []
        """Small graphs that were replayed one after another."""
        self._rounds: Counter[Frames] = Counter()

    def on_eager_op(self, _event: events.EagerOp) -> None:
        self._row.clear()

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        late = graph.keep_graph and not graph.instantiated and graph.replays == 0
        if late and graph.device_ops > _SMALL_OPS:
            self.report(
                FIRST_REPLAY_LATENCY,
                "the first replay instantiates the graph, which was made with keep_graph=True",
                phase="replay",
            )
        if is_profiler_enabled():
            self.report(
                PROFILER_BLIND_INSIDE_GRAPH,
                "a profiler is running: it sees the launch of the graph, and no op or line inside "
                "it",
                phase="replay",
            )

    def on_replay_ended(self, event: events.ReplayEnded) -> None:
        graph = event.graph
        if graph.device_ops > _SMALL_OPS or graph in self._row:
            self._row.clear()
        if graph.device_ops <= _SMALL_OPS:
            self._row.append(graph)
        if len(self._row) == _MIN_SMALL:
            self._rounds[graph.frames] += 1
            if self._rounds[graph.frames] == 2:
                largest = max(small.device_ops for small in self._row)
                self.report(
                    TOO_MANY_SMALL_GRAPHS,
                    f"{_MIN_SMALL} graphs of at most {largest} ops are replayed back to back",
                    graph.frames,
                )


class Compiled(Detector):
    """Reports of ``torch.compile`` on graphs that it captures itself, or does not capture."""

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        for finding in compiled_findings(self.script.compiled, self.script.skips):
            self.findings.add(replace(finding, phase=self.phase))
