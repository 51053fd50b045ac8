"""Graphs that share a pool, and streams that share a buffer: who overwrites whom, and when."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch

from cgtool.detectors.script.check import Check
from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.observe.effects import reads_values, written_by
from cgtool.observe.script.state import Cell, Op, WatchedGraph, Write
from cgtool.observe.storage import tensors_in

SHARED_POOL_CONCURRENT_REPLAY = code("shared-pool-concurrent-replay")
SHARED_POOL_REPLAY_ORDER = code("shared-pool-replay-order")
UNSYNCHRONISED_IO = code("unsynchronised-io")


class SharedPools(Check):
    """``shared-pool-replay-order`` and ``shared-pool-concurrent-replay``."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._overlaps: dict[tuple[int, int], list[Cell]] = {}
        self._lost: dict[int, tuple[WatchedGraph, tuple[Frame, ...]]] = {}
        """Cells whose content another graph has overwritten: which graph, and where."""

    def _sharing(self, graph: WatchedGraph) -> list[WatchedGraph]:
        return [
            one
            for one in self.watch.graphs
            if one is not graph and one.pool == graph.pool and one.pool is not None and one.made
        ]

    def _overlap(self, graph: WatchedGraph, other: WatchedGraph) -> list[Cell]:
        """What the other graph made that lies where this one writes."""
        key = graph.number, other.number
        found = self._overlaps.get(key)
        if found is None:
            starts, ends = _spans(graph)
            found = self._overlaps[key] = []
            for one in other.made.values():
                before = bisect_left(starts, one.cell.end)
                if before and ends[before - 1] > one.cell.address:
                    found.append(one.cell)
        return found

    def replaying(self, graph: WatchedGraph) -> None:
        for key in graph.reads:
            self._told(key)
        stream = self.watch.machine.stream()
        for other in self._sharing(graph):
            last = other.last
            if last is None or self.watch.order.before(last.stream, last.tick, stream):
                continue
            if self._overlap(graph, other):
                self.watch.report(
                    SHARED_POOL_CONCURRENT_REPLAY,
                    f"{graph.name} and {other.name} share a pool, and nothing makes this replay "
                    "wait for the other one, on another stream",
                    self.watch.place(),
                    phase="replay",
                )

    def replayed(self, graph: WatchedGraph) -> None:
        for key in graph.made:
            self._lost.pop(key, None)
        place = graph.last.frames if graph.last is not None else ()
        for other in self._sharing(graph):
            if other.replays:
                for cell in self._overlap(graph, other):
                    if not cell.ref.expired():
                        self._lost.setdefault(cell.key, (graph, place))

    def eager(self, op: Op) -> None:
        if self._lost and reads_values(op.func, op.name):
            written = {id(one) for one in written_by(op.func, op.args, op.kwargs)}
            for one in tensors_in((op.args, op.kwargs)):
                cell = self.watch.cells.find(one)
                if cell is not None and id(one) not in written:
                    self._told(cell.key)

    def waited(self, why: str, tensor: Any) -> None:
        if self._lost and isinstance(tensor, torch.Tensor):
            cell = self.watch.cells.find(tensor)
            if cell is not None:
                self._told(cell.key)

    def _told(self, key: int) -> None:
        lost = self._lost.get(key)
        cell = self.watch.cells.known(key)
        if lost is None or cell is None or cell.made_in is None:
            return
        graph, place = lost
        if graph.part is not None:
            # PyTorch captures these in the order in which they run (``callables``).
            return
        self.watch.report(
            SHARED_POOL_REPLAY_ORDER,
            f"{graph.name} shares a pool with {cell.made_in.name} and overwrites its output, "
            "which is read afterwards",
            place,
            evidence=(f"{cell.bytes} bytes at {cell.address:#x}",),
            phase="replay",
        )


def _spans(graph: WatchedGraph) -> tuple[list[int], list[int]]:
    """Starts and ends of the memory that a graph writes, merged and in order."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted((one.cell.address, one.cell.end) for one in graph.made.values()):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


class Unordered(Check):
    """``unsynchronised-io``: buffers of a graph on two streams, with no wait between."""

    def _report(self, what: str) -> None:
        self.watch.report(
            UNSYNCHRONISED_IO,
            f"{what} on another stream, and nothing orders the two",
            self.watch.place(),
            phase="script",
        )

    def _loose(self, write: Write | None, stream: int) -> bool:
        return write is not None and not self.watch.order.before(write.stream, write.tick, stream)

    def replaying(self, graph: WatchedGraph) -> None:
        stream = self.watch.machine.stream()
        for read in graph.reads.values():
            write = read.cell.write
            if write is None or write.graph is graph or read.cell.place != "device":
                continue
            if self._loose(write, stream):
                self._report("the replay reads what was written")
                return

    def eager(self, op: Op) -> None:
        stream = self.watch.machine.stream()
        written = {id(one) for one in written_by(op.func, op.args, op.kwargs)}
        reads = reads_values(op.func, op.name)
        for one in tensors_in((op.args, op.kwargs)):
            cell = self.watch.cells.find(one)
            if cell is None or cell.place != "device":
                continue
            if id(one) in written and self._loose(cell.read_by, stream):
                self._report("this writes what a replay reads")
                continue
            replayed = cell.write is not None and cell.write.graph is not None
            if replayed and reads and id(one) not in written and self._loose(cell.write, stream):
                self._report("this reads what a replay writes")
