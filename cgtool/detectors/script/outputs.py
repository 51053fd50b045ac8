"""What becomes of a graph's outputs: read too early, kept too long, overwritten, unordered."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import torch

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.frames import position_of
from cgtool.observe.host_values import array_address
from cgtool.observe.script import events
from cgtool.observe.script.containers import Holding, PutOffCall, holdings
from cgtool.observe.script.script import called_by_pytorch
from cgtool.observe.script.state import Access, Buffer, Op, WatchedGraph
from cgtool.observe.source import called_at, operands_at
from cgtool.observe.tensors import key_of, tensors_in
from cgtool.torch_compat.private import running_autograd_node
from cgtool.torch_compat.storages import StorageRef

CAPTURE_DOES_NOT_EXECUTE = code("capture-does-not-execute")
OUTPUT_OF_DROPPED_GRAPH = code("output-of-dropped-graph")
OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY = code("output-overwritten-by-next-replay")
SHARED_POOL_CONCURRENT_REPLAY = code("shared-pool-concurrent-replay")
SHARED_POOL_REPLAY_ORDER = code("shared-pool-replay-order")
UNSYNCHRONIZED_IO = code("unsynchronized-io")


_COMPARISONS = (
    "aten::sub.", "aten::rsub.", "aten::eq.", "aten::ne.", "aten::equal", "aten::isclose",
    "aten::allclose", "aten::mse_loss", "aten::dist", "aten::lt.", "aten::le.", "aten::gt.",
    "aten::ge.", "aten::minimum", "aten::maximum", "aten::fmin", "aten::fmax", "aten::div.",
    "aten::lerp.", "aten::where.self", "aten::smooth_l1_loss", "aten::huber_loss",
    "aten::logical_xor", "aten::bitwise_xor",
)  # fmt: skip
"""Ops whose result is trivial for two arguments that are one tensor."""
_EQUALITIES = ("eq", "ne", "not_equal", "equal", "isclose", "allclose")
"""Functions that compare two tensors by ``aten::eq`` and ``aten::ne``, which others (``isfinite``)
run on one."""


class Outputs(Detector):
    """Outputs that are read before any replay, or kept over several."""

    def start(self) -> None:
        self._looked_at: dict[int, int] = {}
        """By key of an output: replays of its graph at the last search for copies."""
        self._kept: dict[int, int] = {}
        """By key of a buffer of the script that a graph writes: how many items of one container
        were its memory at the last search."""
        self._before: defaultdict[WatchedGraph, deque[Counter[Holding]]]
        self._before = defaultdict(lambda: deque(maxlen=2))
        """How many items of each container had its outputs when each of its last replays began."""
        self._piled: dict[Holding, Callable[[], Frames]] = {}
        """Where the next replay found another item, and what puts it there."""
        self._early: defaultdict[tuple[int, str], set[Frames]] = defaultdict(set)
        """Where an output was read before the first replay, by its key and the name of the op."""

    def on_op_captured(self, event: events.OpCaptured) -> None:
        # A captured op did the same before, too early: that was its warm-up, which is harmless.
        for tensor in event.op.read if self._early else ():
            for frames in self._early.pop((key_of(tensor) or 0, event.op.name), ()):
                self.findings.drop(CAPTURE_DOES_NOT_EXECUTE, frames)

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        if not 0 < graph.replays <= _SEARCHES:
            return

        def memory(item: Any) -> Hashable:
            buffer = self.script.buffers.find(item) if isinstance(item, torch.Tensor) else None
            own = buffer is not None and buffer.allocated_in is graph
            return _memory_of(buffer, item) if own else None

        now: Counter[Holding] = Counter()
        before = self._before[graph]
        for place, count, frames in holdings(self.script.frame(), memory, _FEW):
            now[place] = max(now[place], count)
            if _is_piled(place, count, before):
                self._piled[place] = frames
        before.append(now)

    def on_eager_op(self, event: events.EagerOp) -> None:
        op = event.op
        for tensor in op.read:
            self._look_at_read(tensor, op.name)
            self._look_for_copies(tensor)
        self._look_for_comparison(op)
        for value in (*op.args, *op.kwargs.values()):
            if op.read and isinstance(value, list | tuple):
                self._look_for_one_buffer(list(tensors_in(value)))

    def on_host_read(self, event: events.HostRead) -> None:
        self._look_for_copies(event.tensor)

    def on_host_waited(self, event: events.HostWaited) -> None:
        if event.tensor is None:
            return
        self._look_at_read(event.tensor, event.call)
        self._look_for_copies(event.tensor)

    def _look_for_copies(self, tensor: torch.Tensor) -> None:
        """An output that is read, and that a container holds several times."""
        buffer = self.script.buffers.find(tensor)
        graph = None if buffer is None else buffer.allocated_in
        if buffer is not None and graph is None and buffer.last_write is not None:
            graph = buffer.last_write.graph
        if buffer is None or graph is None or graph.replays < 2:
            return
        if self._looked_at.get(buffer.key) != graph.replays:
            self._looked_at[buffer.key] = graph.replays
            frames, items = self._kept_at(tensor) or ((), 1)
            # Of its own memory the script may keep several names; a result is kept once more after
            # each replay.
            before = 1 if buffer.allocated_in is graph else self._kept.get(buffer.key, items)
            self._kept[buffer.key] = items
            if before < items:
                self._report_overwritten(graph, frames or None)

    def _look_at_read(self, tensor: torch.Tensor, call: str) -> None:
        buffer = self.script.buffers.find(tensor)
        if buffer is None:
            return
        for graph in self.script.replayable():
            if graph.replays == 0 and _is_result(graph, buffer):
                self._early[buffer.key, call].add(self.script.place())
                self.report(
                    CAPTURE_DOES_NOT_EXECUTE,
                    f"an output of {graph.name} is read before its first replay; a capture runs "
                    "nothing",
                )
                return

    def _look_for_comparison(self, op: Op) -> None:
        """An output that is compared with itself: one of its names was meant for an earlier one."""
        if not op.name.startswith(_COMPARISONS) or len(op.tensors) < 2:
            return
        # A loss is a function of PyTorch in Python.
        if called_by_pytorch(but_for=torch.nn.functional.__file__):
            return
        # A mask comes before what it selects from.
        first, second = op.tensors[-2:] if op.name.startswith("aten::where.") else op.tensors[:2]
        graph = self.script.buffers.allocator_of(first)
        last = None if graph is None else graph.last_replay
        same = first.data_ptr() == second.data_ptr() and first.shape == second.shape
        if graph is None or graph.callable is not None or last is None:
            # Two calls of a graphed callable are graphed-callable-called-twice.
            return
        if same and graph.replays > 1 and not self._is_test_for_nan(op):
            self.report(
                OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                f"an earlier output of {graph.name} is used together with that of this replay, but "
                "both are one buffer, which this replay overwrites",
                last.frames,
                evidence=tuple(
                    f"used at {Path(line.file).name}:{line.line}"
                    for line in self.script.place()[:1]
                ),
            )

    def _is_test_for_nan(self, op: Op) -> bool:
        """`torch.isfinite(out)`, `out != out`: compared with itself on purpose."""
        if not op.name.startswith(("aten::eq.", "aten::ne.")):
            return False
        sites = self.script.chain()[:1]
        called = "".join(map(called_at, map(position_of, sites)))
        operands = {text for site in sites for text in operands_at(position_of(site))}
        if called:
            return called not in _EQUALITIES
        # `run() == run()` has two results.
        return len(operands) == 1 and "(" not in operands.pop()

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
            kept = self._kept_at(tensor)
            self._report_overwritten(graph, None if kept is None else kept[0] or None)
            return

    def _report_overwritten(self, graph: WatchedGraph, frames: Frames | None) -> None:
        if graph.callable is None or not graph.callable.called_twice:
            self.report(
                OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
                f"the output of {graph.name} is kept several times; all of these are one "
                "buffer, which holds the result of the last replay",
                frames,
            )

    def _kept_at(self, tensor: torch.Tensor) -> tuple[Frames, int] | None:
        """The line that puts tensors of one memory, again and again, into a container, or () if
        some line does, and how many are there; None if none is kept several times. ``tensor`` is
        such a tensor, or a view. Arrays of NumPy may have the memory too."""
        buffer = self.script.buffers.find(tensor)
        storage = StorageRef(tensor)

        def memory(item: Any) -> Hashable:
            if isinstance(item, torch.Tensor):
                own = self.script.buffers.find(item) is buffer
                return _memory_of(buffer, item) if own else None
            address = array_address(item) or 0
            own = storage.address <= address < storage.address + storage.bytes
            return (address, tuple(item.shape)) if own else None

        graph = None if buffer is None else buffer.allocated_in
        before = deque() if graph is None else self._before[graph]
        # Large containers take long: what a script piles up in them was noted when it began to.
        replays = 0 if graph is None else graph.replays
        is_rare = replays <= _WHOLE_SEARCHES or replays & (replays - 1) == 0
        largest = math.inf if is_rare else _FEW
        for place, count, frames in holdings(self.script.frame(), memory, largest):
            # What was in a container before the last replay may be there several times on purpose.
            # So may several calls that are made after every replay.
            is_new = not isinstance(place[2], PutOffCall) and not (before and before[-1][place])
            if count > 1 and (is_new or _is_piled(place, count, before)):
                return frames(), count
        for place, frames in self._piled.items():
            own = place[2].memory if isinstance(place[2], PutOffCall) else place[2]
            if own == _memory_of(buffer, tensor):
                return frames(), 2
        return None


def _is_piled(place: Holding, count: int, before: deque[Counter[Holding]]) -> bool:
    """Whether another result was kept after the last replay; of calls that were put off, one after
    each of the last two, since a call may also be added to those that follow every replay.
    ``before``: how many there were when each of the last replays began."""
    *_, earlier, last = 0, 0, *(counts[place] for counts in before)
    return 0 < last < count and (earlier < last or not isinstance(place[2], PutOffCall))


def _memory_of(buffer: Buffer | None, tensor: torch.Tensor) -> Hashable:
    return buffer and buffer.key, tensor.data_ptr(), tuple(tensor.shape)


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


_SEARCHES = 64
"""Replays of one graph before which is searched for what holds its outputs."""
_WHOLE_SEARCHES = 8
"""Replays after which all containers are searched; later, after 16, 32, 64, ..."""
_FEW = 4 * _SEARCHES
"""Items of the largest containers that are looked into there: data sets are larger."""


class Abandoned(Detector):
    """Outputs of graphs that are gone: the script captures again, and goes on reading the tensors
    of the first capture, which the replays of the second do not write."""

    phase = "replay"

    def start(self) -> None:
        self._replays = 0
        """Of all graphs, so far."""
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
                )


def _is_in_place_of(graph: WatchedGraph, earlier: WatchedGraph) -> bool:
    """Whether one line captured both, wherever it was called."""
    return earlier.number < graph.number and earlier.frames[:1] == graph.frames[:1]


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
        self.report(
            SHARED_POOL_REPLAY_ORDER,
            f"{graph.name} shares a pool with {buffer.allocated_in.name} and overwrites what that "
            "has written, which is read afterwards",
            frames,
            fix=None if graph.callable is None else _IN_ORDER,
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

    def start(self) -> None:
        self._reads: defaultdict[int, dict[int, int]] = defaultdict(dict)
        """By key of a buffer and stream: the position of the last eager op that reads it."""

    def _is_unordered(self, access: Access | None, stream: int) -> bool:
        return access is not None and not self.script.order.before(
            access.stream, access.tick, stream
        )

    def _report(self, use: str) -> None:
        self.report(
            UNSYNCHRONIZED_IO, f"{use} on another stream, and nothing orders the two streams"
        )

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        stream = self.script.device.stream()
        for use in event.graph.external.values():
            write = use.buffer.last_write
            if write is None or write.graph is event.graph or use.buffer.place != "device":
                continue
            if self._is_unordered(write, stream):
                self._report("the replay reads what was written")
                return
        if any(self._is_read_elsewhere(key, stream, event.graph) for key in _written(event.graph)):
            self._report("the replay overwrites what is read")

    def _is_read_elsewhere(self, key: int, stream: int, graph: WatchedGraph) -> bool:
        """Whether an eager op, or the replay of another graph, may still read a buffer."""
        reads, buffer = self._reads.pop(key, {}), self.script.buffers.by_key(key)
        last = None if buffer is None else buffer.last_read
        if last is not None and last.graph not in (None, graph):
            reads[last.stream] = max(reads.get(last.stream, 0), last.tick)
        return any(not self.script.order.before(*read, stream) for read in reads.items())

    def on_eager_op(self, event: events.EagerOp) -> None:
        if running_autograd_node() is not None:
            # Autograd's engine makes the streams of a backward wait for each other.
            return
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
            if write is not None and write.graph is not None and buffer is not None:
                self._reads[buffer.key][stream] = self.script.order.submit(stream)

    def _on_device(self, tensor: torch.Tensor) -> Buffer | None:
        buffer = self.script.buffers.find(tensor)
        return buffer if buffer is not None and buffer.place == "device" else None


def _written(graph: WatchedGraph) -> Iterator[int]:
    """The keys of the buffers on the device that a graph writes."""
    yield from (
        key for key, use in graph.external.items() if use.written and use.buffer.place == "device"
    )
    yield from graph.allocated


class PinnedReads(Detector):
    """Pinned memory that the host reads while a copy from the device may still write it."""

    def start(self) -> None:
        self._copies: dict[int, tuple[int, int]] = {}
        """By key of the pinned buffer: stream and position of the last copy into it."""

    def on_replay_ended(self, event: events.ReplayEnded) -> None:
        replay = event.graph.last_replay
        filled = [use.buffer for use in event.graph.external.values() if use.written]
        for buffer in (*filled, *event.graph.allocated.values()):
            if buffer.place == "pinned" and replay is not None:
                self._copies[buffer.key] = replay.stream, replay.tick

    def on_eager_op(self, event: events.EagerOp) -> None:
        op, device = event.op, self.script.device
        copied = op.copied(event.result)
        if copied is None or device.place(copied[0]) != "device":
            for tensor in op.read:
                self._look_at_read(tensor)
        elif op.non_blocking and device.place(copied[1]) == "pinned":
            storage = StorageRef(copied[1])
            buffer = self.script.buffers.add(storage, "pinned", storage.address)
            stream = device.stream()
            self._copies[buffer.key] = stream, self.script.order.submit(stream)

    def on_host_read(self, event: events.HostRead) -> None:
        self._look_at_read(event.tensor)

    def _look_at_read(self, tensor: torch.Tensor) -> None:
        buffer = self.script.buffers.find(tensor)
        copy = None if buffer is None else self._copies.get(buffer.key)
        if copy is not None and not self.script.order.done(*copy):
            self.report(
                UNSYNCHRONIZED_IO,
                "the host reads pinned memory that a copy from the device may still be writing",
                fix="wait before the host reads it: `torch.cuda.current_stream().synchronize()`, "
                "or an event that was recorded after the copy",
            )
