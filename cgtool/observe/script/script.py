"""A script under observation: its graphs, their memory, the order of its streams.

``ObservedScript`` is the state that observers keep and subscribers read. The observers next to it
(``graphs``, ``calls``) patch PyTorch and call its methods, which update the state and publish
events.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from types import FrameType
from typing import Any, Protocol

import torch

from cgtool.model.capture import Frame
from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import overwrites
from cgtool.observe.frames import Site, chain_of, frames_of, is_internal, package_part
from cgtool.observe.ops import OpCall, OpRecorder, op_name
from cgtool.observe.script import events
from cgtool.observe.script.names import locals_of, region_of, stack_of
from cgtool.observe.script.state import (
    Access,
    Buffers,
    ExternalUse,
    Op,
    StreamOrder,
    WatchedGraph,
)
from cgtool.observe.tensors import key_of, listed_tensors, tensors_in
from cgtool.torch_compat.private import CALL_MODULE_CODE
from cgtool.torch_compat.storages import StorageRef

OnCapturedOp = Callable[[OpCall, Any, tuple[Any, ...], dict[str, Any], Any], None]
"""Called with call, func, args, kwargs and result of every op of a capture."""

_SYNCS = frozenset(
    (
        "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero",
        "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    )
)  # fmt: skip
"""Ops that wait for the device to read a value."""


class Device(Protocol):
    """What the observers need of a device: ``cuda.script`` and ``simulated.script_device``."""

    simulated: bool
    graph_class: Any
    """``torch.cuda.CUDAGraph`` while the script runs."""
    recorder: OpRecorder | None
    """Takes the ops of the capture in progress. The simulated device has one of its own."""

    @property
    def on_host(self) -> bool:
        """What runs now touches host tensors only, whatever their marks say."""

    def place(self, tensor: torch.Tensor) -> str:
        """``device``, ``host``, ``pinned``."""

    def address(self, storage: StorageRef) -> int:
        """On the device."""

    def is_dead(self, ref: StorageRef) -> bool:
        """The script holds no reference to the storage any more."""

    def pool_bytes(self, pool: tuple[int, int]) -> int:
        """Reserved by a pool of graphs."""

    def keeps_graph(self, graph: Any) -> bool:
        """A captured graph was made with ``keep_graph=True``."""

    def generator_state(self) -> torch.Tensor:
        """The state of the default generator now; in a real capture, its offset in the graph."""

    def captured_nodes(self) -> int:
        """Nodes so far of the graph that the current stream is captured into; 0 if unknown."""

    def template(self, graph: Any) -> Hashable:
        """What the template of a graph made with ``keep_graph=True`` holds; None if unknown."""

    def stream(self) -> int:
        """Handle of the current stream; 0 is the default stream."""


class CaptureWatcher(OpRecorder):
    """Records the ops of a capture on a GPU, which run as they are.

    Not entered: ``calls.OpObserver`` passes ops to it.
    """

    def __init__(self, annotations: Annotations, on_op: OnCapturedOp) -> None:
        super().__init__({}, annotations)
        self._on_op = on_op
        self._home = threading.get_ident()
        self.modules.__enter__()

    def stop(self) -> None:
        self.modules.__exit__(None, None, None)

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = self.run(func, args, kwargs)
        self._on_op(call, func, args, kwargs, result)
        return result


class ObservedScript(events.Publisher):
    """The state of one run of one script, on one device."""

    def __init__(self, device: Device, annotations: Annotations) -> None:
        super().__init__()
        self.device = device
        self.annotations = annotations
        self.order = StreamOrder()
        self.buffers = Buffers()
        self.graphs: list[WatchedGraph] = []
        self.compiled_captures = 0
        """Captures that ``torch.compile`` makes itself; their graphs have no ``WatchedGraph``."""
        self.compiled_replays = 0
        self._by_object: weakref.WeakKeyDictionary[Any, WatchedGraph] = weakref.WeakKeyDictionary()
        self.capture: WatchedGraph | None = None
        """In progress."""
        self.capture_thread: int | None = None
        self._main_thread = threading.get_ident()
        self.threads = {self._main_thread}
        """The thread of the script, and those that it has started; not autograd's."""
        self.clock = 0
        """Counts writes and replays."""

    def chain(self) -> tuple[Site, ...]:
        """The user's call chain now; on autograd's threads that of the call that waits for them."""
        return chain_of(sys._getframe(1)) or chain_of(self._waiting())

    def _waiting(self) -> FrameType | None:
        """The frame of the thread that waits for a thread without user code."""
        return sys._current_frames().get(self.capture_thread or self._main_thread)

    def place(self) -> tuple[Frame, ...]:
        """The frames of ``chain``."""
        return frames_of(self.chain())

    def frame(self) -> FrameType | None:
        """The innermost frame of ``chain``.

        Never one of cgtool's: a frame that is kept in a local of its own is a cycle, and keeps
        alive all that its callers hold.
        """
        return _user_frame(sys._getframe(1)) or _user_frame(self._waiting())

    def graph_of(self, cuda_graph: Any) -> WatchedGraph | None:
        """The state of a ``CUDAGraph``; None if it has captured nothing."""
        return self._by_object.get(cuda_graph)

    def replayable(self) -> Iterator[WatchedGraph]:
        """Graphs that are captured and neither reset nor dead."""
        return (graph for graph in self.graphs if graph.replayable)

    def graphs_by_place(self) -> dict[tuple[Frame, ...], list[WatchedGraph]]:
        """All graphs by the frames of their capture, in order."""
        places: dict[tuple[Frame, ...], list[WatchedGraph]] = {}
        for graph in self.graphs:
            places.setdefault(graph.frames, []).append(graph)
        return places

    # Captures.

    def begin_capture(self, cuda_graph: Any, pool: Any, mode: str) -> None:
        """``capture_begin`` has returned."""
        stack = stack_of(self.frame())
        innermost = next(iter(stack.values()), None)
        graph = WatchedGraph(
            number=len(self.graphs) + 1,
            graph=weakref.ref(cuda_graph, lambda _: self.drop(graph)),
            frames=self.place(),
            pool=None if pool is None else tuple(pool),
            own_pool=pool is None,
            mode=mode,
            stream=self.device.stream(),
            began=self.clock,
            handled_error=sys.exc_info()[1],
            outer_frames={number: frame.f_lasti for number, frame in stack.items()},
            lines=(0, 0) if innermost is None else region_of(innermost),
        )
        self.graphs.append(graph)
        self._by_object[cuda_graph] = graph
        self.capture, self.capture_thread = graph, threading.get_ident()
        if not self.device.simulated:
            self._stop_watcher()
            self.device.recorder = CaptureWatcher(self.annotations, self.captured_op)
        if self.device.recorder is not None:
            graph.record = self.device.recorder.record
        self.publish(events.CaptureBegan(graph))

    def captured_op(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """An op of the capture in progress has run."""
        graph = self.capture
        if graph is None:
            return
        graph.ops += 1
        if self.device.on_host:
            return
        graph.device_ops += 1
        graph.op_names.add(call.name)
        first_uses: list[ExternalUse] = []
        op = Op(call, func, call.name, args, kwargs)
        written = set(map(key_of, op.written))
        for key, tensor in _by_storage(op.tensors):
            if key in graph.external:
                graph.external[key].written |= key in written
            elif key not in graph.allocated:
                storage = StorageRef(tensor)
                address = self.device.address(storage)
                graph.external[key] = ExternalUse(
                    self.buffers.add(storage, self.device.place(tensor), address),
                    call,
                    weakref.ref(tensor),
                    tuple(tensor.shape),
                    tensor.data_ptr(),
                    key in written,
                    key in written and overwrites(call.name),
                )
                first_uses.append(graph.external[key])
        for key, tensor in _by_storage(tensors_in(result)):
            if key not in graph.external and key not in graph.allocated:
                storage = StorageRef(tensor)
                place, address = self.device.place(tensor), self.device.address(storage)
                buffer = self.buffers.add(storage, place, address)
                buffer.allocated_in = graph
                graph.allocated[key] = buffer
        stream = self.device.stream()
        tick = graph.order.submit(stream)
        graph.last_calls[stream] = tick, call
        self.publish(events.OpCaptured(graph, op, result, stream, tick, first_uses))

    def end_capture(self, graph: WatchedGraph, cuda_graph: Any) -> None:
        """``capture_end`` has returned."""
        self._capture_over(graph)
        graph.state = "captured"
        graph.keep_graph = self.device.keeps_graph(cuda_graph)
        with contextlib.suppress(Exception):
            graph.pool = tuple(cuda_graph.pool())
        self.publish(events.CaptureEnded(graph))

    def fail_capture(
        self, graph: WatchedGraph, end_error: BaseException, code_error: BaseException | None
    ) -> None:
        """``capture_end`` has raised, or ends a capture whose code has raised."""
        self._capture_over(graph)
        graph.state = "failed"
        self.publish(events.CaptureFailed(graph, end_error, code_error))

    def thread_raised(self, error: BaseException) -> None:
        """A call has raised: a fact only where this thread is not the one that captures, nor
        works for it."""
        graph = self.capture or next(reversed(self.graphs), None)
        others = self.threads - {self.capture_thread or self._main_thread}
        if graph is not None and threading.get_ident() in others:
            name = threading.current_thread().name
            self.publish(events.ThreadRaised(graph, name, error))

    def _capture_over(self, graph: WatchedGraph) -> None:
        self.capture = self.capture_thread = graph.handled_error = None
        self._stop_watcher()

    def _stop_watcher(self) -> None:
        if isinstance(self.device.recorder, CaptureWatcher):
            self.device.recorder.stop()
            self.device.recorder = None

    # Graphs.

    def end_replay(self, graph: WatchedGraph) -> None:
        """``replay`` has returned."""
        graph.replays += 1
        replay = graph.last_replay = self._access(graph)
        # Subscribers see who wrote each buffer before this replay.
        self.publish(events.ReplayEnded(graph))
        for use in graph.external.values():
            use.buffer.last_read = replay
            if use.written:
                use.buffer.last_write = replay
        for buffer in graph.allocated.values():
            buffer.last_write = replay

    def drop(self, graph: WatchedGraph) -> None:
        """A graph is reset or has died."""
        if self.closed or graph.state != "captured":
            return
        if self.capture is not None and graph is not self.capture:
            self.capture.disturbed = True
        self.publish(events.GraphDropped(graph))
        graph.state = "dropped"

    # Between captures.

    def eager_op(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """An op outside captures has run."""
        if self.closed or self.capture is not None or not len(self.buffers):
            return
        op = Op(None, func, op_name(func), args, kwargs)
        if any(map(self.buffers.find, op.tensors)):
            self.publish(events.EagerOp(op, result))
            for tensor in listed_tensors((result,)):
                self.publish(events.TensorReturned(tensor))
            written = [buffer for tensor in op.written if (buffer := self.buffers.find(tensor))]
            if written:
                write = self._access(None)
                for buffer in written:
                    buffer.last_write = write
        if self.device.on_host:
            return
        if op.name.partition(".")[0] in _SYNCS:
            self.host_waited(op.name, next(tensors_in(args), None))
        elif (copied := op.copied(result)) is not None:
            self._copied(op, *copied)

    def _copied(self, op: Op, source: torch.Tensor, target: torch.Tensor) -> None:
        """The host waits for a copy to its memory, unless that is pinned and it need not wait."""
        place = self.device.place(target)
        waits = place == "host" or (place == "pinned" and not op.non_blocking)
        if waits and self.device.place(source) == "device":
            self.host_waited(op.name, source)

    def host_waited(self, call: str, tensor: torch.Tensor | None = None) -> None:
        """The host has waited for the current stream, to read ``tensor``."""
        if self.capture is None and not self.closed:
            self.order.host_waits(self.device.stream())
            self.publish(events.HostWaited(call, tensor))

    def host_read(self, tensor: torch.Tensor) -> None:
        """A call has read, or is about to read, a tensor on the host."""
        if self.capture is None and len(self.buffers):
            self.publish(events.HostRead(tensor))

    def finish(self) -> None:
        """The script is over."""
        self.publish(events.ScriptEnded())
        self.closed = True

    def _access(self, graph: WatchedGraph | None) -> Access:
        stream = self.device.stream()
        self.clock += 1
        return Access(stream, self.order.submit(stream), self.clock, graph, self.place())


def _user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and is_internal(frame.f_code):
        frame = frame.f_back
    return frame


def _by_storage(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    """Those that have a storage, each with its key."""
    for tensor in tensors:
        key = key_of(tensor)
        if key is not None:
            yield key, tensor


def captured_by_compiled_code() -> bool:
    """True when code of ``torch.compile(mode="reduce-overhead")`` begins the capture."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if package_part(frame.f_code.co_filename).startswith("/torch/_inductor/"):
            return True
        frame = frame.f_back
    return False


def running_modules(frame: FrameType | None) -> Iterator[torch.nn.Module]:
    """The modules whose ``__call__`` is running in ``frame`` or its callers, innermost first."""
    while frame is not None:
        if frame.f_code is CALL_MODULE_CODE:
            yield locals_of(frame)["self"]
        frame = frame.f_back


def called_by_pytorch() -> bool:
    """True when the patched function that is running was called from inside PyTorch (or the
    standard library), not by the script or a library that it uses."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and package_part(frame.f_code.co_filename).startswith("/cgtool/"):
        frame = frame.f_back
    return frame is not None and is_internal(frame.f_code)
