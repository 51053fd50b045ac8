"""A script under observation: its graphs, their memory, the order of its streams.

``ObservedScript`` is the state that observers keep and subscribers read. It subscribes to the
follower of graphs (``observe.graphs``); the observers next to it (``calls``, ``graphed_callables``,
``streams``) patch PyTorch and call its methods. Both update the state and publish events.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Protocol

import torch

from cgtool.model.capture import Frames
from cgtool.model.ledger import COMPILE, LedgerGraph, Skip
from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import overwrites, takes_shape
from cgtool.observe.frames import (
    Chain,
    call_user,
    caller_of_cgtool,
    callers,
    frames_of,
    frames_of_other_threads,
    is_internal,
    locals_of,
    user_frame,
)
from cgtool.observe.graphs import Beginning, Subscriber
from cgtool.observe.ops import OpCall, OpRecorder, op_name
from cgtool.observe.script import events
from cgtool.observe.script.state import (
    Access,
    Buffers,
    EagerResults,
    ExternalUse,
    Op,
    StreamOrder,
    Unread,
    WatchedGraph,
)
from cgtool.observe.tensors import DEVICE, key_of, tensors_in
from cgtool.observe.waiting import chain_or_waiting
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.private import CALL_MODULE_CODE
from cgtool.torch_compat.storages import Layout, StorageRef
from cgtool.torch_compat.weak import Weak

OnCapturedOp = Callable[[OpCall, Any, tuple[Any, ...], dict[str, Any], Any], None]
"""Called with call, func, args, kwargs and result of every op of a capture."""

_SYNCS = frozenset(
    (
        "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero",
        "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    )
)  # fmt: skip
"""Ops that wait for the device to read a value."""


class Undoing(Protocol):
    """A recorder that undoes what a run writes (``recapture.contained``)."""

    copies_device: bool
    """Whether memory of the device is copied before it is overwritten: a capture writes none."""

    def observe(self, func: Any, args: Args, kwargs: Kwargs, run: Any, caller: Any) -> Any:
        """See ``OpRecorder.observe``."""

    def undo(self) -> None:
        """Write back what was overwritten; once more, and it is as the run has left it."""


class Device(Protocol):
    """The operations of a device that observers need: ``cuda.script`` and
    ``simulated.script_device``."""

    simulated: bool
    graph_class: Any
    """``torch.cuda.CUDAGraph`` while the script runs."""
    recorder: Any
    """Takes the ops of the capture in progress. The simulated device has one of its own."""

    def ran_on_host(self, values: Any) -> bool:
        """Whether an op has used host tensors only. ``values``: its arguments and its result."""

    def place(self, tensor: torch.Tensor) -> str:
        """``device``, ``host``, ``pinned``."""

    def address(self, storage: StorageRef) -> int:
        """On the device."""

    def is_dead(self, ref: StorageRef) -> bool:
        """The script holds no reference to the storage anymore."""

    def pool_bytes(self, pool: tuple[int, int]) -> int:
        """Reserved by a pool of graphs."""

    def is_in_pool(self, address: int, pool: tuple[int, int]) -> bool:
        """A pool of graphs has the memory at this address."""

    def reset_frees_workspaces(self) -> bool:
        """Resetting a graph frees the cuBLAS workspaces of its stream. Found by trying it."""

    def keeps_graph(self, graph: Any) -> bool:
        """A captured graph was made with ``keep_graph=True``."""

    def generator_state(self) -> torch.Tensor:
        """The state of the default generator now; in a real capture, its offset in the graph."""

    def set_generator_state(self, state: torch.Tensor) -> None:
        """Outside captures: what ``generator_state`` returned."""

    def synchronize(self) -> None:
        """Wait for the device, without an event."""

    def captured_nodes(self) -> int:
        """Nodes so far of the graph that the current stream is captured into; 0 if unknown."""

    def stream(self) -> int:
        """Handle of the current stream; 0 is the default stream."""

    def stream_is_captured(self) -> bool:
        """Whether the current stream, which each thread has for itself, is captured."""

    def run_again(self, run: Callable[[], None], recorder: Undoing) -> Callable[[], None]:
        """Run captured code once more, whose ops go to ``recorder``, without effects on the memory
        of the device; returns what makes these effects happen. Raises what the code raises."""


class CaptureWatcher(OpRecorder):
    """Records the ops of a capture on a GPU, which run as they are.

    Not entered: ``calls.OpObserver`` passes ops to it.
    """

    def __init__(
        self, annotations: Annotations, on_op: OnCapturedOp, count_nodes: Callable[[], int]
    ) -> None:
        super().__init__({}, annotations)
        self._on_op = on_op
        self._count_nodes = count_nodes
        self.nodes = 0
        """The number of nodes that ops added to the graph."""
        self.modules.__enter__()

    def stop(self) -> None:
        self.modules.__exit__(None, None, None)

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        before = self._count_nodes()
        result = self.run(func, args, kwargs)
        self.nodes += self._count_nodes() - before
        self._on_op(call, func, args, kwargs, result)
        return result


class ObservedScript(events.Publisher, Subscriber[WatchedGraph]):
    """The state of one run of one script, on one device."""

    def __init__(self, device: Device, annotations: Annotations) -> None:
        super().__init__()
        self.device = device
        self.annotations = annotations
        self.order = StreamOrder()
        self.buffers = Buffers()
        self.graphs: list[WatchedGraph] = []
        self.compiled: list[tuple[Frames, LedgerGraph]] = []
        """Captures that ``torch.compile`` makes itself, and the calls that lead to them. Their
        graphs have no ``WatchedGraph``."""
        self.compiled_replays = 0
        self.skips: list[Skip] = []
        """Why ``torch.compile`` captured nothing."""
        self._live: dict[int, WatchedGraph] = {}
        """The graphs that can be replayed, by ``id`` of the ``CUDAGraph``."""
        self._replay: Callable[[Any], None] = lambda _graph: None
        """PyTorch's own function."""
        self.capture: WatchedGraph | None = None
        """In progress."""
        self.capture_thread: int | None = None
        self.home_thread = threading.get_ident()
        """That which has captured or replayed last; at first that of the script."""
        self.threads = {self.home_thread}
        """The thread of the script, and those that it has started; not autograd's."""
        self.failed_threads: list[tuple[str, str, Frames]] = []
        """Threads that an exception has ended: the name, the exception, and where it was raised."""
        self.clock = 0
        """Counts writes and replays."""
        self.run_again: set[int] = set()
        """The numbers of the graphs whose code was run again (``recapture.regions``)."""
        self.not_run_again: dict[int, str] = {}
        """Why that of others was not, by number."""
        self.results = EagerResults()
        """Whose ops are published as ``ResultUsed``, like those of the next."""
        self.early: dict[int, tuple[StorageRef, Any]] = {}
        """By key: what eager ops have made of outputs that no replay has computed, and what is
        known of that."""
        self.unread = Unread()

    def chain(self) -> Chain:
        """The user's call chain now; on autograd's threads that of the call that waits for them."""
        return chain_or_waiting(sys._getframe(1), self.capture_thread or self.home_thread)

    def place(self) -> Frames:
        """The frames of ``chain``."""
        return frames_of(self.chain())

    def frame(self) -> FrameType | None:
        """The innermost frame of ``chain``.

        Never one of cgtool's: a frame that is kept in a local of its own is a cycle, and keeps
        alive all that its callers hold.
        """
        thread = self.capture_thread or self.home_thread
        return user_frame(sys._getframe(1)) or user_frame(frames_of_other_threads().get(thread))

    def graph_of(self, cuda_graph: Any) -> WatchedGraph | None:
        """The state of a ``CUDAGraph`` that can be replayed; None for any other."""
        return self._live.get(id(cuda_graph))

    def replayable(self) -> Iterator[WatchedGraph]:
        """Graphs that are captured and neither reset nor dead."""
        return (graph for graph in self.graphs if graph.replayable)

    def graphs_by_place(self) -> dict[Frames, list[WatchedGraph]]:
        """All graphs by the frames of their capture, in order."""
        places: dict[Frames, list[WatchedGraph]] = {}
        for graph in self.graphs:
            places.setdefault(graph.frames, []).append(graph)
        return places

    # Captures (``observe.graphs.Subscriber``).

    def skipped(self, reason: str) -> None:
        self.skips.append(Skip(0, reason))

    def capture_began(
        self, beginning: Beginning, _before: None, _expected: None
    ) -> WatchedGraph | None:
        if beginning.owner == COMPILE:
            number, key, because = len(self.compiled), beginning.key, beginning.because
            entry = LedgerGraph(0, number, COMPILE, key, because)
            self.compiled.append((frames_of(beginning.chain), entry))
            return None
        graph = WatchedGraph(
            number=len(self.graphs),
            graph=weakref.ref(beginning.graph),
            frames=frames_of(beginning.chain),
            pool=beginning.pool,
            own_pool=beginning.pool is None,
            mode=beginning.mode,
            stream=self.device.stream(),
            began=self.clock,
        )
        self.graphs.append(graph)
        self.capture, self.capture_thread = graph, threading.get_ident()
        self.home_thread = self.capture_thread
        if not self.device.simulated:
            self._stop_watcher()
            self.device.recorder = CaptureWatcher(
                self.annotations, self.captured_op, self.device.captured_nodes
            )
        if self.device.recorder is not None:
            graph.record = self.device.recorder.record
        self.publish(events.CaptureBegan(graph))
        return graph

    def captured_op(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        """An op of the capture in progress has run."""
        graph = self.capture
        if graph is None:
            return
        graph.ops += 1
        for tensor in tensors_in((args, kwargs)) if self.unread.kinds else ():
            self.unread.read(tensor)
        if self.device.ran_on_host((args, kwargs, result)):
            return
        graph.device_ops += 1
        graph.op_names.add(call.name)
        first_uses: list[ExternalUse] = []
        op = Op(call, func, call.name, args, kwargs)
        written = set(map(key_of, op.written))
        # A tensor of which only the shape is taken may be gone at a replay.
        read = () if takes_shape(call.name) else op.tensors
        for key, tensor in _by_storage(read):
            if key in graph.external:
                graph.external[key].written |= key in written
            elif key not in graph.allocated:
                storage = StorageRef(tensor)
                address = self.device.address(storage)
                graph.external[key] = ExternalUse(
                    self.buffers.add(storage, self.device.place(tensor), address),
                    call,
                    Weak(tensor),
                    Layout.of(tensor),
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
                buffer.allocated_in, buffer.allocated_by = graph, call
                graph.allocated[key] = buffer
        stream = self.device.stream()
        tick = graph.order.submit(stream)
        graph.last_calls[stream] = tick, call
        self.publish(events.OpCaptured(graph, op, result, stream, tick, first_uses))

    def capture_ends(self, graph: WatchedGraph, _raised: BaseException | None) -> None:
        if graph is self.capture:
            self.publish(events.CaptureEnds(graph))
            # Kernels that no op of PyTorch launches (Triton's, the user's own) count too.
            nodes = self.device.captured_nodes()
            graph.device_ops = max(graph.device_ops, nodes)
            if isinstance(self.device.recorder, CaptureWatcher):
                graph.only_ops = 0 < nodes == self.device.recorder.nodes

    def captured(self, graph: WatchedGraph, cuda_graph: Any) -> None:
        self._capture_over()
        graph.state = "captured"
        graph.keep_graph = self.device.keeps_graph(cuda_graph)
        with contextlib.suppress(Exception):
            graph.pool = tuple(cuda_graph.pool())
        self._claim_memory(graph)
        self.publish(events.CaptureEnded(graph))

    def _claim_memory(self, graph: WatchedGraph) -> None:
        """Memory that C++ code allocated during the capture without an op is not an input of the
        graph: TorchScript's fused kernels allocate their results so."""
        gone = [
            use.buffer
            for use in graph.external.values()
            if use.buffer.place == DEVICE
            and use.buffer.allocated_in is None
            and self.device.is_dead(use.buffer.ref)
        ]
        for buffer in gone:
            if graph.pool is not None and self.device.is_in_pool(buffer.address, graph.pool):
                buffer.allocated_in = graph
                graph.allocated[buffer.key] = buffer
                del graph.external[buffer.key]

    def capture_failed(
        self, graph: WatchedGraph, raised: BaseException | None, refused: BaseException | None
    ) -> None:
        self._capture_over()
        graph.state = "failed"
        freed = RuntimeError("the graph was freed during its capture")
        self.publish(events.CaptureFailed(graph, refused or raised or freed, raised))

    def thread_raised(self, error: BaseException) -> None:
        """A call has raised: a fact only where this thread is not the one that captures, nor
        works for it."""
        graph = self.capture or next(reversed(self.graphs), None)
        others = self.threads - {self.capture_thread or self.home_thread}
        if graph is not None and threading.get_ident() in others:
            name = threading.current_thread().name
            self.publish(events.ThreadRaised(graph, name, error))

    def _capture_over(self) -> None:
        self.capture = self.capture_thread = None
        self._stop_watcher()

    def _stop_watcher(self) -> None:
        if isinstance(self.device.recorder, CaptureWatcher):
            self.device.recorder.stop()
            self.device.recorder = None

    # Graphs.

    def replay(
        self, original: Callable[[Any], None], graphs: dict[int, WatchedGraph]
    ) -> Callable[[Any], None]:
        self._live, self._replay = graphs, original

        @functools.wraps(original)
        def replay(cuda_graph: Any) -> None:
            graph = graphs.get(id(cuda_graph))
            if graph is not None:
                thread = threading.get_ident()
                self.home_thread = thread if thread in self.threads else self.home_thread
                for event in graph.waits_for:
                    self.order.wait_event(self.device.stream(), event)
                self.publish(events.ReplayBegins(graph))
            try:
                call_user(original, cuda_graph)
            except Exception as error:
                self.publish(events.CallRaised(error, "replay"))
                raise
            if graph is None:
                self.compiled_replays += 1
            else:
                self._replayed(graph)

        return replay

    def replay_unseen(self, graph: WatchedGraph) -> None:
        """Replay a graph once more, between two replays of the script's, without an event."""
        self._replay(graph.graph())

    def _replayed(self, graph: WatchedGraph) -> None:
        graph.replays += 1
        replay = graph.last_replay = self._access(graph)
        for event in graph.records:
            self.order.record(event, replay.stream)
        # Subscribers see who wrote each buffer before this replay.
        self.publish(events.ReplayEnded(graph))
        for use in graph.external.values():
            use.buffer.last_read = replay
            if use.written:
                use.buffer.last_write = replay
        for buffer in graph.allocated.values():
            buffer.last_write = replay

    def gone(self, graph: WatchedGraph, _end: str) -> None:
        if self.closed:
            return
        if self.capture is not None:
            self.capture.disturbed = True
        self.publish(events.GraphDropped(graph))
        graph.state = "dropped"

    # Between captures.

    def eager_op(self, func: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        """An op outside captures has run."""
        if self.closed or self.capture is not None or not len(self.buffers):
            return
        op = Op(None, func, op_name(func), args, kwargs)
        if self._uses_results(op):
            self.publish(events.ResultUsed(op, result))
        if any(map(self.buffers.find, op.tensors)):
            self.publish(events.EagerOp(op, result))
            written = [buffer for tensor in op.written if (buffer := self.buffers.find(tensor))]
            if written:
                write = self._access(None)
                for buffer in written:
                    buffer.last_write = write
        if self.unread.kinds:
            self.unread.ran(op, result, self.clock, self.place)
        if self.device.ran_on_host((args, kwargs, result)):
            return
        for tensor in op.made(result):
            self.publish(events.TensorMade(tensor))
        if op.name.partition(".")[0] in _SYNCS:
            self.host_waited(op.name, next(tensors_in(args), None))
        elif (copied := op.copied(result)) is not None:
            self._copied(op, *copied)

    def _uses_results(self, op: Op) -> bool:
        return (len(self.results) > 0 and any(map(self.results.find, op.tensors))) or (
            len(self.early) > 0 and any(key_of(tensor) in self.early for tensor in op.tensors)
        )

    def _copied(self, op: Op, source: torch.Tensor, target: torch.Tensor) -> None:
        """The host waits for a copy to its memory, unless that is pinned and it need not wait."""
        place = self.device.place(target)
        waits = place == "host" or (place == "pinned" and not op.non_blocking)
        if waits and self.device.place(source) == "device":
            self.host_waited(op.name, source)
        elif (
            op.non_blocking and self.buffers.find(target) and self.device.place(source) == "pinned"
        ):
            # The host's next write to it may come too early.
            storage = StorageRef(source)
            buffer = self.buffers.add(storage, "pinned", self.device.address(storage))
            buffer.last_read = self._access(None)

    def host_waited(self, call: str, tensor: torch.Tensor | None) -> None:
        """The host has waited for the current stream, to read ``tensor``."""
        if self.capture is None and not self.closed:
            self.order.host_waits(self.device.stream())
            if tensor is not None:
                self.unread.read(tensor)
            self.publish(events.HostWaited(call, tensor))

    def host_read(self, tensor: torch.Tensor, array: Any = None) -> None:
        """A call has read, or is about to read, a tensor on the host; ``array``: as of
        ``HostRead``."""
        if self.capture is None and len(self.buffers):
            self.unread.read(tensor)
            self.publish(events.HostRead(tensor, array))

    def finish(self) -> None:
        """The script is over."""
        self.publish(events.ScriptEnded())
        self.closed = True

    def _access(self, graph: WatchedGraph | None) -> Access:
        stream = self.device.stream()
        self.clock += 1
        return Access(stream, self.order.submit(stream), self.clock, graph, self.place())


def _by_storage(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    """The tensors that have a storage, each with its key."""
    for tensor in tensors:
        key = key_of(tensor)
        if key is not None:
            yield key, tensor


def running_modules(frame: FrameType | None) -> Iterator[torch.nn.Module]:
    """The modules whose ``__call__`` is running in ``frame`` or its callers, innermost first."""
    for each in callers(frame):
        if each.f_code is CALL_MODULE_CODE:
            yield locals_of(each)["self"]


def called_by_pytorch(but_for: str | None = None) -> bool:
    """True when the patched function that is running was called from inside PyTorch (or the
    standard library), not by the script or a library that it uses, nor by the file ``but_for``."""
    caller = caller_of_cgtool(sys._getframe(1))
    return caller is not None and is_internal(caller) and caller.co_filename != but_for
