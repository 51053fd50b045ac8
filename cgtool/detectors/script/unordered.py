"""Memory that one stream, or the host, uses while another stream may still use it."""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frame
from cgtool.observe.effects import overwrites
from cgtool.observe.script import events
from cgtool.observe.script.names import everything_named, stack_of
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import Access, Buffer, EagerResult, Op, WatchedGraph
from cgtool.observe.tensors import key_of
from cgtool.torch_compat.private import running_autograd_node
from cgtool.torch_compat.storages import StorageRef, extent, is_whole
from cgtool.torch_compat.streams import handle_of

UNSYNCHRONIZED_IO = code("unsynchronized-io")

_COLLECTIVES = ("c10d::", "_c10d_functional::")
_AFTER_REPLAY = {"before": "this line", "work": "replay", "side": "of the replay"}


class Unordered(Detector):
    """Buffers of a graph that two streams use, with no wait between."""

    def start(self) -> None:
        self._reads: defaultdict[int, dict[int, int]] = defaultdict(dict)
        """By key of a buffer and stream: the position of the last eager op that reads it."""

    def _is_unordered(self, access: Access | None, stream: int) -> bool:
        return access is not None and not self.script.order.before(
            access.stream, access.tick, stream
        )

    def _report(
        self, use: str, of: Access | EagerResult | None = None, *, before: str, work: str, side: str
    ) -> None:
        """``of``: the work of the other stream, if it is known."""
        stream = None if of is None else _name_of_stream(self.script, of.stream)
        name = stream or "side"
        frames = of.frames if isinstance(of, Access) else ()
        says_which = name.startswith("torch.")
        self.report(
            UNSYNCHRONIZED_IO,
            f"{use} on another stream, and no wait orders {before} after that {work}",
            fix=f"call `torch.cuda.current_stream().wait_stream({name})` before {before}"
            + ("" if says_which else f", where `{name}` is the stream {side}"),
            evidence=(
                *([f"the {work} is at {frames[0].short}"] if frames else ()),
                *(() if of is None else self._own_waits(of)),
            ),
        )

    def _own_waits(self, work: Access | EagerResult) -> Iterator[str]:
        """Evidence of waits that were meant to order the two streams."""
        for stream in (work.stream, self.script.device.stream()):
            time, frames = self.script.order.own_waits.get(stream, (-1, ()))
            if time >= work.time and frames:
                place = frames[0].short
                yield f"the wait at {place} orders nothing: a stream waits there for its own work"

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        stream = self.script.device.stream()
        for use in event.graph.external.values():
            write = use.buffer.last_write
            if write is None or write.graph is event.graph or use.buffer.place != "device":
                continue
            if self._is_unordered(write, stream):
                self._report(
                    "the replay reads what was written",
                    write,
                    before="the replay",
                    work="write",
                    side="that writes it",
                )
                return
        if any(self._is_read_elsewhere(key, stream, event.graph) for key in _written(event.graph)):
            self._report(
                "the replay overwrites what is read",
                before="the replay",
                work="read",
                side="that reads it",
            )

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
            read = None if buffer is None else buffer.last_read
            if self._is_unordered(read, stream):
                self._report("this line writes what a replay reads", read, **_AFTER_REPLAY)
        is_of_output = False
        for tensor in event.op.read:
            buffer = self._on_device(tensor)
            write = buffer.last_write if buffer is not None else None
            if write is not None and write.graph is not None and self._is_unordered(write, stream):
                self._report("this line reads what a replay writes", write, **_AFTER_REPLAY)
            if write is not None and write.graph is not None and buffer is not None:
                self._reads[buffer.key][stream] = self.script.order.submit(stream)
                is_of_output = True
        if is_of_output:
            self._follow(event.op, event.result, stream)

    def _follow(self, op: Op, result: Any, stream: int) -> None:
        """The op reads what a replay has written, or what was made of that: from now on, note who
        uses what it makes."""
        work = stream, self.script.order.submit(stream), self.script.clock
        filled = op.written if overwrites(op.name) else ()
        for tensor in (*op.made(result), *filter(is_whole, filled)):
            # A copy to another device makes the streams of both wait.
            is_here = key_of(tensor) is not None and tensor.device == op.read[0].device
            if is_here and self.script.device.place(tensor) == "device":
                self.script.results.add(tensor, self.script.order, work)

    def on_result_used(self, event: events.ResultUsed) -> None:
        if running_autograd_node() is not None:
            return
        op, order = event.op, self.script.order
        for tensor in op.tensors:
            if op.name.startswith(_COLLECTIVES):
                # They use streams of their own, for which a `Work` waits.
                self.script.results.forget(tensor)
        for tensor in (*op.read, *op.written):
            self._look_at_result(tensor)
        if any(map(self.script.results.find, op.read)) and order.has_several_streams():
            self._follow(op, event.result, self.script.device.stream())

    def on_host_read(self, event: events.HostRead) -> None:
        self._look_at_result(event.tensor)

    def _look_at_result(self, tensor: torch.Tensor) -> None:
        result, stream = self.script.results.find(tensor), self.script.device.stream()
        if result is not None and not self.script.order.before(result.stream, result.tick, stream):
            self._report(
                "this line uses what was computed from the output of a graph",
                result,
                before="this line",
                work="work",
                side="that computes it",
            )
            # Its other uses are the same mistake.
            self.script.results.forget(tensor)

    def _on_device(self, tensor: torch.Tensor) -> Buffer | None:
        buffer = self.script.buffers.find(tensor)
        return buffer if buffer is not None and buffer.place == "device" else None


def _name_of_stream(script: ObservedScript, stream: int) -> str | None:
    """How the running code can write a stream; None if it has no name."""
    if stream == script.device.stream():
        return "torch.cuda.current_stream()"
    if stream == 0:
        return "torch.cuda.default_stream()"
    for named in everything_named(stack_of(script.frame())):
        is_stream = isinstance(named.value, torch.cuda.Stream | torch.Stream)
        if is_stream and handle_of(named.value) == stream:
            return named.text
    return None


def _written(graph: WatchedGraph) -> Iterator[int]:
    """The keys of the buffers on the device that a graph writes."""
    yield from (
        key for key, use in graph.external.items() if use.written and use.buffer.place == "device"
    )
    yield from graph.allocated


@dataclass(slots=True, eq=False)
class _Copy:
    """Work of the device that fills pinned memory."""

    first: int
    """Address of its first byte."""
    end: int
    """Address of the byte behind its last one."""
    stream: int
    tick: int
    other_wait: str | None = None
    """How the host has waited since for something else."""


class PinnedReads(Detector):
    """Pinned memory that the host reads while a copy from the device may still write it."""

    def start(self) -> None:
        self._copies: defaultdict[int, list[_Copy]] = defaultdict(list)
        """By key of the pinned buffer: the last copies into its parts."""
        self._arrays: dict[int, weakref.ref[Any]] = {}
        """By id: NumPy arrays of memory that a copy may still be writing."""

    def _add(self, buffer: Buffer, copy: _Copy) -> None:
        self._copies[buffer.key] = [
            each
            for each in self._copies[buffer.key]
            if not (copy.first <= each.first and each.end <= copy.end)
            and not self.script.order.done(each.stream, each.tick)
        ]
        self._copies[buffer.key].append(copy)

    def on_replay_ended(self, event: events.ReplayEnded) -> None:
        replay = event.graph.last_replay
        filled = [use.buffer for use in event.graph.external.values() if use.written]
        for buffer in (*filled, *event.graph.allocated.values()):
            if buffer.place == "pinned" and replay is not None:
                first = buffer.ref.address
                end = first + buffer.bytes
                self._add(buffer, _Copy(first, end, replay.stream, replay.tick))

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
            work = stream, self.script.order.submit(stream)
            self._add(buffer, _Copy(*_bytes_of(copied[1]), *work))

    def on_host_read(self, event: events.HostRead) -> None:
        if event.array is None:
            self._look_at_read(event.tensor)
        elif copies := list(self._reaching_to(event.tensor)):
            number = id(event.array)
            is_gone = partial(self._array_is_gone, copies, number)
            self._arrays[number] = weakref.ref(event.array, is_gone)

    def _array_is_gone(self, copies: list[_Copy], number: int, _: weakref.ref[Any]) -> None:
        """Reports copies into an array that is gone: whatever read it did not wait for them."""
        self._arrays.pop(number, None)
        if not self.script.closed:
            done = self.script.order.done
            self._report_first(copy for copy in copies if not done(copy.stream, copy.tick))

    def on_host_waited(self, event: events.HostWaited) -> None:
        copies = [] if event.tensor is not None else [*self._under_way()]
        place = self.script.place() if copies else ()
        for copy in copies if place else ():
            at = place[0].short
            copy.other_wait = (
                f"the wait at {at} is for another stream"
                if event.call == "Stream.synchronize"
                else f"the event that the host waits for at {at} was not recorded after the copy, "
                "or not on its stream"
            )

    def _look_at_read(self, tensor: torch.Tensor) -> None:
        self._report_first(self._reaching_to(tensor))

    def _reaching_to(self, tensor: torch.Tensor) -> Iterator[_Copy]:
        """The copies that may still write the memory of a tensor."""
        buffer = self.script.buffers.find(tensor)
        copies = () if buffer is None else self._copies.get(buffer.key, ())
        if copies:
            yield from self._reaching(copies, *_bytes_of(tensor))

    def _under_way(self) -> Iterator[_Copy]:
        """The copies that may not be done."""
        for copies in list(self._copies.values()):
            yield from (
                copy for copy in copies if not self.script.order.done(copy.stream, copy.tick)
            )

    def _reaching(self, copies: Iterable[_Copy], first: int, end: int) -> Iterator[_Copy]:
        for copy in copies:
            is_there = copy.first < end and first < copy.end
            if is_there and not self.script.order.done(copy.stream, copy.tick):
                yield copy

    def _report_first(self, copies: Iterator[_Copy]) -> None:
        """A read of what these copies write, if there are any."""
        copy = next(copies, None)
        if copy is None:
            return
        frames = tuple(itertools.dropwhile(_is_numpy, self.script.place()))
        stream = _name_of_stream(self.script, copy.stream)
        is_current = copy.stream == self.script.device.stream()
        self.report(
            UNSYNCHRONIZED_IO,
            "the host reads pinned memory that a copy from the device may still be writing",
            frames,
            fix=f"wait before the host reads it: `{stream or 'side'}.synchronize()`"
            + ("" if stream else ", where `side` is the stream of the copy")
            + ", or an event that is recorded after the copy"
            + ("" if is_current else ", on its stream"),
            evidence=() if copy.other_wait is None else (copy.other_wait,),
        )


def _is_numpy(frame: Frame) -> bool:
    """Whether a line is one of NumPy's, which reads what the script passes to it."""
    return "-packages/numpy/" in frame.file


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The address of its first byte, and of the byte behind its last one."""
    first = tensor.data_ptr()
    return first, first + extent(tensor.shape, tensor.stride()) * tensor.element_size()
