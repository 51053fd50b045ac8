"""Outputs of graphs that are gone, which the script goes on reading."""

from __future__ import annotations

from collections import defaultdict

import torch

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.script import events
from cgtool.observe.script.state import Buffer, WatchedGraph

OUTPUT_OF_DROPPED_GRAPH = code("output-of-dropped-graph")


class Abandoned(Detector):
    """Outputs of graphs that are gone: the script captures again, and goes on reading the tensors
    of the first capture, which the replays of the second do not write."""

    phase = "replay"

    def start(self) -> None:
        self._replays = 0
        """Replays of all graphs so far."""
        self._read_after: dict[int, int] = {}
        """By key of an output: how many replays there were when it was last read."""
        self._readers: defaultdict[int, set[Frames]] = defaultdict(set)
        """By key of an output: the lines that were the first to read it after a replay."""
        self._unread: dict[WatchedGraph, None] = {}
        """Graphs that were captured where a graph that is gone was: nobody has read a result."""
        self._late: defaultdict[WatchedGraph, dict[Frames, WatchedGraph]] = defaultdict(dict)
        """By such a graph: where an output of the old one is read after its replay."""

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        if any(_is_in_place_of(event.graph, each) for each in self.script.graphs):
            self._unread[event.graph] = None

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        for use in event.graph.external.values() if self._unread else ():
            if not use.first_is_write:
                self._note_read(use.buffer, event.graph)

    def on_replay_ended(self, _event: events.ReplayEnded) -> None:
        self._replays += 1

    def _note_read(self, buffer: Buffer, reader: WatchedGraph | None = None) -> None:
        """A line of the script, or a replay, reads a buffer, which may be a result of a graph."""
        for later in list(self._unread):
            if later is reader:
                continue
            use = later.external.get(buffer.key)
            if later.replays and (buffer.allocated_in is later or (use and use.written)):
                del self._unread[later]

    def on_eager_op(self, event: events.EagerOp) -> None:
        for tensor in event.op.read:
            self._look_at(tensor)

    def on_host_read(self, event: events.HostRead) -> None:
        self._look_at(event.tensor)

    def on_host_waited(self, event: events.HostWaited) -> None:
        if event.tensor is not None:
            self._look_at(event.tensor)

    def _look_at(self, tensor: torch.Tensor) -> None:
        buffer = self.script.buffers.find(tensor)
        if buffer is None:
            return
        self._note_read(buffer)
        graph = buffer.allocated_in
        if graph is None or not graph.replays or graph.callable is not None:
            return
        if self._read_after.get(buffer.key) == self._replays:
            return
        self._read_after[buffer.key] = self._replays
        place = self.script.place()
        if place not in self._readers[buffer.key]:
            self._readers[buffer.key].add(place)
        elif graph.state == "dropped":
            for later in self._unread:
                if later.replays and _is_in_place_of(later, graph):
                    self._late[later].setdefault(place, graph)

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        for later in self._unread:
            for place, graph in self._late.get(later, {}).items():
                self.report(
                    OUTPUT_OF_DROPPED_GRAPH,
                    f"an output of {graph.name} is read again, but that graph is gone; "
                    f"{later.name}, captured in its place, writes other tensors",
                    place,
                    graphs=(graph, later),
                )


def _is_in_place_of(graph: WatchedGraph, earlier: WatchedGraph) -> bool:
    """Whether one line captured both, wherever it was called."""
    return earlier.number < graph.number and earlier.frames[:1] == graph.frames[:1]
