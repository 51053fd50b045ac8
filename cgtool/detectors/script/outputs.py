"""What becomes of a graph's outputs: read too early, kept too long, overwritten, unordered."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from cgtool.detectors.reporting import Detector, on
from cgtool.findings import code
from cgtool.model.capture import Frame
from cgtool.observe.script import events
from cgtool.observe.script.names import names_of, stack_of
from cgtool.observe.script.state import Access, Buffer, WatchedGraph
from cgtool.observe.source import tree_of
from cgtool.observe.tensors import tensors_in

CAPTURE_DOES_NOT_EXECUTE = code("capture-does-not-execute")
OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY = code("output-overwritten-by-next-replay")
SHARED_POOL_CONCURRENT_REPLAY = code("shared-pool-concurrent-replay")
SHARED_POOL_REPLAY_ORDER = code("shared-pool-replay-order")
UNSYNCHRONISED_IO = code("unsynchronised-io")


class Outputs(Detector):
    """Outputs that are read before any replay, or kept over several."""

    @on(events.EagerOp)
    def _look_at_op(self, event: events.EagerOp) -> None:
        op = event.op
        for tensor in op.read:
            self._look_at_read(tensor)
        for value in (*op.args, *op.kwargs.values()):
            if op.read and isinstance(value, list | tuple):
                self._look_for_one_buffer(list(tensors_in(value)))

    @on(events.HostWaited)
    def _look_at_wait(self, event: events.HostWaited) -> None:
        if event.tensor is None:
            return
        self._look_at_read(event.tensor)
        graph = self.script.buffers.allocator_of(event.tensor)
        if graph is not None and graph.replays > 1:
            frames = self._kept_at(event.tensor)
            if frames is not None:
                self._report_overwritten(graph, frames)

    def _look_at_read(self, tensor: torch.Tensor) -> None:
        buffer = self.script.buffers.find(tensor)
        if buffer is None:
            return
        for graph in self.script.replayable():
            if graph.replays == 0 and _is_result(graph, buffer):
                self.report(
                    CAPTURE_DOES_NOT_EXECUTE,
                    f"an output of {graph.name} is read before its first replay; a capture runs "
                    "nothing",
                )
                return

    def _look_for_one_buffer(self, tensors: list[torch.Tensor]) -> None:
        """Several outputs of replays that are one buffer, as in ``torch.stack(outputs)``."""
        first: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}
        for tensor in tensors:
            graph = self.script.buffers.allocator_of(tensor)
            if graph is None or graph.replays < 2:
                continue
            known = first.setdefault((tensor.data_ptr(), tuple(tensor.shape)), tensor)
            if known is tensor and sum(other is tensor for other in tensors) < 2:
                continue
            self._report_overwritten(graph, self._kept_at(tensor))
            return

    def _report_overwritten(self, graph: WatchedGraph, frames: tuple[Frame, ...] | None) -> None:
        if graph.callable is None or not graph.callable.called_twice:
            self.report(
                OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                f"the output of {graph.name} is kept several times; all are one buffer, which "
                "holds the last replay",
                frames,
            )

    def _kept_at(self, tensor: torch.Tensor) -> tuple[Frame, ...] | None:
        """The line that puts the tensor, again and again, into a container."""
        memory = tensor.data_ptr(), tuple(tensor.shape)
        for frame in stack_of(self.script.frame()).values():
            for name, value, _ in names_of(frame):
                kept = sum(
                    self.script.buffers.find(item) is not None
                    and (item.data_ptr(), tuple(item.shape)) == memory
                    for item in _items(value)
                    if isinstance(item, torch.Tensor)
                )
                if kept > 1:
                    line = _puts_into(frame.f_code.co_filename, name)
                    if line is None:
                        return None
                    return (Frame(frame.f_code.co_filename, line, frame.f_code.co_qualname),)
        return None


def _is_result(graph: WatchedGraph, buffer: Buffer) -> bool:
    """A replay of the graph would compute what the buffer holds."""
    if buffer.allocated_in is graph:
        return buffer.last_write is None
    use = graph.external.get(buffer.key)
    if use is None or not use.first_is_write or buffer.allocated_in is not None:
        return False
    # State that the graph overwrites may have a value of its own before.
    written = buffer.last_write is not None and buffer.last_write.time > graph.began
    return not written and not isinstance(use.tensor(), torch.nn.Parameter)


def _items(container: Any) -> Iterator[Any]:
    if isinstance(container, list | tuple | deque | set):
        yield from list(container)[:4096]
    elif isinstance(container, dict):
        yield from list(container.values())[:4096]


_PUTS = frozenset(("append", "appendleft", "extend", "insert", "add", "put", "setdefault"))


def _puts_into(file: str, name: str) -> int | None:
    """The first line of a file that puts something into the container of this name."""
    tree = tree_of(file)
    lines: list[int] = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if node.func.attr in _PUTS and isinstance(owner, ast.Name) and owner.id == name:
                lines.append(node.lineno)
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                inner = target.value if isinstance(target, ast.Subscript) else target
                puts = isinstance(node, ast.AugAssign) or inner is not target
                if puts and isinstance(inner, ast.Name) and inner.id == name:
                    lines.append(node.lineno)
    return min(lines, default=None)


class SharedPools(Detector):
    """Graphs that share a pool: replayed in another order, or at the same time."""

    phase = "replay"

    def start(self) -> None:
        self._overlaps: dict[tuple[int, int], list[Buffer]] = {}
        self._lost: dict[int, tuple[WatchedGraph, tuple[Frame, ...]]] = {}
        """By key of a buffer that another graph has overwritten: which graph, and where."""

    def _sharing(self, graph: WatchedGraph) -> list[WatchedGraph]:
        if graph.pool is None:
            return []
        return [
            other
            for other in self.script.graphs
            if other is not graph and other.pool == graph.pool and other.allocated
        ]

    def _overlap(self, graph: WatchedGraph, other: WatchedGraph) -> list[Buffer]:
        """What the other graph allocated at addresses where this one writes."""
        key = graph.number, other.number
        if key not in self._overlaps:
            starts, ends = _spans(graph)
            self._overlaps[key] = []
            for buffer in other.allocated.values():
                before = bisect_left(starts, buffer.end)
                if before and ends[before - 1] > buffer.address:
                    self._overlaps[key].append(buffer)
        return self._overlaps[key]

    @on(events.ReplayBegins)
    def _look_at_replay(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        for use in graph.external.values():
            self._look_at_read(use.buffer)
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
                )

    @on(events.ReplayEnded)
    def _note_overwritten(self, event: events.ReplayEnded) -> None:
        graph = event.graph
        for key in graph.allocated:
            self._lost.pop(key, None)
        frames = graph.last_replay.frames if graph.last_replay is not None else ()
        for other in self._sharing(graph):
            if other.replays:
                for buffer in self._overlap(graph, other):
                    if not buffer.ref.expired():
                        self._lost.setdefault(buffer.key, (graph, frames))

    @on(events.EagerOp)
    def _look_at_op(self, event: events.EagerOp) -> None:
        if self._lost:
            for tensor in event.op.read:
                self._look_at_read(self.script.buffers.find(tensor))

    @on(events.HostWaited)
    def _look_at_wait(self, event: events.HostWaited) -> None:
        if self._lost and event.tensor is not None:
            self._look_at_read(self.script.buffers.find(event.tensor))

    def _look_at_read(self, buffer: Buffer | None) -> None:
        if buffer is None or buffer.key not in self._lost or buffer.allocated_in is None:
            return
        graph, frames = self._lost[buffer.key]
        if graph.callable is not None:
            # PyTorch captures these in the order in which they run.
            return
        self.report(
            SHARED_POOL_REPLAY_ORDER,
            f"{graph.name} shares a pool with {buffer.allocated_in.name} and overwrites its "
            "output, which is read afterwards",
            frames,
            evidence=(f"{buffer.bytes} bytes at {buffer.address:#x}",),
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


class Unordered(Detector):
    """Buffers of a graph that two streams use, with no wait between."""

    def _is_unordered(self, access: Access | None, stream: int) -> bool:
        return access is not None and not self.script.order.before(
            access.stream, access.tick, stream
        )

    def _report(self, use: str) -> None:
        self.report(
            UNSYNCHRONISED_IO, f"{use} on another stream, and nothing orders the two streams"
        )

    @on(events.ReplayBegins)
    def _look_at_replay(self, event: events.ReplayBegins) -> None:
        stream = self.script.device.stream()
        for use in event.graph.external.values():
            write = use.buffer.last_write
            if write is None or write.graph is event.graph or use.buffer.place != "device":
                continue
            if self._is_unordered(write, stream):
                self._report("the replay reads what was written")
                return

    @on(events.EagerOp)
    def _look_at_op(self, event: events.EagerOp) -> None:
        stream = self.script.device.stream()
        for tensor in event.op.written:
            buffer = self._on_device(tensor)
            if buffer is not None and self._is_unordered(buffer.last_read, stream):
                self._report("this line writes what a replay reads")
        for tensor in event.op.read:
            buffer = self._on_device(tensor)
            write = buffer.last_write if buffer is not None else None
            if write is not None and write.graph is not None and self._is_unordered(write, stream):
                self._report("this line reads what a replay writes")

    def _on_device(self, tensor: torch.Tensor) -> Buffer | None:
        buffer = self.script.buffers.find(tensor)
        return buffer if buffer is not None and buffer.place == "device" else None
