"""Everything that is hooked while a script runs, and what is told to the checks."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from cgtool.hazards.collect import Findings, frames_of, here
from cgtool.hazards.errors import explain
from cgtool.hazards.watch.accumulate import in_place
from cgtool.hazards.watch.cells import Cells, Write, storage_of, tensors_in
from cgtool.hazards.watch.check import Check
from cgtool.hazards.watch.effects import overwrites, written_by
from cgtool.hazards.watch.graphs import Made, Op, Read, WatchedGraph
from cgtool.hazards.watch.machine import Machine
from cgtool.hazards.watch.order import Order
from cgtool.hazards.watch.regions import region_of
from cgtool.model.capture import Frame
from cgtool.model.finding import Finding
from cgtool.record.annotations import Annotations
from cgtool.record.frames import chain_of, exception_frames, is_internal
from cgtool.record.ops import OpCall, op_name

_SYNCS = frozenset(
    (
        "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero",
        "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    )
)  # fmt: skip
_READS = frozenset(
    (
        torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__repr__,
        torch.Tensor.__format__,
    )
)  # fmt: skip
_MOVES = frozenset((torch.Tensor.cpu, torch.Tensor.to, torch.Tensor.copy_))
_TOLD = "_cgtool_told"


def told(error: BaseException) -> bool:
    """True when the findings behind an exception are collected already."""
    return bool(getattr(error, _TOLD, False))


def tell_once(error: BaseException) -> None:
    with contextlib.suppress(AttributeError, TypeError):
        setattr(error, _TOLD, True)


class Watch:
    """One run of one script."""

    def __init__(self, machine: Machine, findings: Findings, annotations: Annotations) -> None:
        self.machine = machine
        self.findings = findings
        self.annotations = annotations
        self.order = Order()
        self.cells = Cells()
        self.graphs: list[WatchedGraph] = []
        self._by_graph: weakref.WeakKeyDictionary[Any, WatchedGraph] = weakref.WeakKeyDictionary()
        self.capture: WatchedGraph | None = None
        self.thread: int | None = None
        """That captures."""
        self.home = threading.get_ident()
        self.now = 0
        """Counts writes and replays."""
        self.checks: list[Check] = []
        self.closed = False
        self._busy = threading.local()

    # What checks use.

    def report(
        self,
        code: str,
        reason: str,
        frames: tuple[Frame, ...],
        *,
        fix: str | None = None,
        evidence: tuple[str, ...] = (),
        severity: str | None = None,
        phase: str | None = None,
        module: str | None = None,
    ) -> None:
        if not self.closed:
            self.findings.add(
                Finding(
                    code,
                    reason,
                    frames,
                    module=module,
                    phase=phase,
                    fix=fix,
                    evidence=evidence,
                    severity=severity,
                )
            )

    def place(self) -> tuple[Frame, ...]:
        """The user's frames now; on autograd's threads those of the call that waits for them."""
        frames = here(2)
        return frames or frames_of(chain_of(sys._current_frames().get(self.home)))

    def frame(self) -> types.FrameType | None:
        """The innermost frame of the user's, on the thread that runs the script.

        Never one of cgtool's: a frame that is kept in a local of its own is a cycle, and keeps
        alive all that its callers hold.
        """
        if threading.get_ident() == self.home:
            frame: types.FrameType | None = sys._getframe(1)
        else:
            frame = sys._current_frames().get(self.home)
        while frame is not None and is_internal(frame.f_code):
            frame = frame.f_back
        return frame

    def of(self, graph: Any) -> WatchedGraph | None:
        return self._by_graph.get(graph)

    def alive(self) -> Iterator[WatchedGraph]:
        """Graphs that can be replayed."""
        return (one for one in self.graphs if one.live())

    # What happens.

    def begun(self, graph: Any, pool: Any, mode: str) -> None:
        frame = self.frame()
        watched = WatchedGraph(
            number=len(self.graphs) + 1,
            graph=weakref.ref(graph, lambda _: self.dropped(watched)),
            frames=self.place(),
            pool=None if pool is None else tuple(pool),
            own_pool=pool is None,
            mode=mode,
            stream=self.machine.stream(),
            began=self.now,
        )
        while frame is not None:
            if not is_internal(frame.f_code):
                if not watched.outer:
                    watched.lines = region_of(frame)
                watched.outer[id(frame)] = frame.f_lasti
            frame = frame.f_back
        self.graphs.append(watched)
        self._by_graph[graph] = watched
        self.capture, self.thread = watched, threading.get_ident()
        self.machine.begun(self)
        recorder = self.machine.recorder
        if recorder is not None:
            watched.record = recorder.record
        for check in self.checks:
            check.begun(watched)

    def captured(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any
    ) -> None:
        """An op of the capture in progress."""
        graph = self.capture
        if graph is None:
            return
        graph.ops += 1
        if self.machine.on_host:
            return
        graph.device_ops += 1
        op = Op(call, func, call.name, args, kwargs, made)
        fresh: list[int] = []
        written = {
            storage._cdata
            for one in written_by(func, args, kwargs)
            if (storage := storage_of(one)) is not None
        }
        given: set[int] = set()
        for tensor in tensors_in((args, kwargs)):
            storage = storage_of(tensor)
            if storage is None:
                continue
            key = storage._cdata
            given.add(key)
            if key in graph.made:
                continue
            known = graph.reads.get(key)
            if known is None:
                fresh.append(key)
                graph.reads[key] = self._read(call, tensor, storage, key in written)
            else:
                known.written |= key in written
        for tensor in tensors_in(made):
            storage = storage_of(tensor)
            if storage is not None and storage._cdata not in given | graph.made.keys():
                if storage._cdata not in graph.reads:
                    self._made(graph, call, tensor, storage)
        for check in self.checks:
            check.captured(graph, op, fresh)

    def _read(
        self, call: OpCall, tensor: torch.Tensor, storage: torch.UntypedStorage, written: bool
    ) -> Read:
        cell = self.cells.add(storage, self.machine.place(tensor), self.machine.address(storage))
        whole = tensor.numel() * tensor.element_size() == storage.nbytes()
        return Read(
            cell,
            call,
            weakref.ref(tensor),
            tuple(tensor.shape),
            tensor.data_ptr(),
            written,
            written and overwrites(call.name),
            whole,
        )

    def _made(self, graph: WatchedGraph, call: OpCall, tensor: torch.Tensor, storage: Any) -> None:
        cell = self.cells.add(storage, "device", self.machine.address(storage))
        cell.made_in = graph
        graph.made[cell.key] = Made(cell, call, weakref.ref(tensor))

    def ended(self, graph: Any) -> None:
        watched = self._by_graph.get(graph)
        self._over()
        if watched is None:
            return
        watched.state = "captured"
        watched.keeps = self.machine.keeps(graph)
        with contextlib.suppress(Exception):
            watched.pool = tuple(graph.pool())
        for check in self.checks:
            check.ended(watched)

    def failed(self, graph: Any, error: BaseException, during: BaseException | None) -> None:
        """``during`` is what the captured code had raised before."""
        self._over()
        watched = self._by_graph.get(graph)
        root = during or error
        self.explain(root, "capture")
        tell_once(error)
        if watched is not None:
            watched.state = "failed"
            for check in self.checks:
                check.failed(watched, root)

    def _over(self) -> None:
        self.capture = self.thread = None
        self.machine.ended()

    def explain(self, error: BaseException, phase: str, frames: tuple[Frame, ...] = ()) -> bool:
        """Collect what an exception means; False when it means nothing to cgtool."""
        if told(error):
            return True
        found = explain(error, phase)
        if found is None:
            return False
        tell_once(error)
        self.report(
            found.code,
            found.reason,
            frames or exception_frames(error) or self.place(),
            fix=found.fix,
            evidence=found.evidence,
            phase=phase,
        )
        return True

    def replaying(self, graph: Any) -> None:
        watched = self._by_graph.get(graph)
        if watched is not None:
            for check in self.checks:
                check.replaying(watched)

    def replayed(self, graph: Any) -> None:
        watched = self._by_graph.get(graph)
        if watched is None:
            return
        stream = self.machine.stream()
        self.now += 1
        watched.replays += 1
        write = Write(stream, self.order.submit(stream), self.now, watched, frames=self.place())
        watched.last = write
        for check in self.checks:
            check.replayed(watched)
        for read in watched.reads.values():
            read.cell.read_by = write
            if read.written:
                read.cell.write = write
        for made in watched.made.values():
            made.cell.write = write

    def eager(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        """An op outside captures."""
        if self.closed or self.capture is not None or not len(self.cells):
            return
        name = op_name(func)
        touched = [cell for one in tensors_in((args, kwargs)) if (cell := self.cells.find(one))]
        if touched:
            op = Op(None, func, name, args, kwargs, made)
            for check in self.checks:
                check.eager(op)
            written = [
                cell for one in written_by(func, args, kwargs) if (cell := self.cells.find(one))
            ]
            if written:
                stream = self.machine.stream()
                self.now += 1
                write = Write(
                    stream, self.order.submit(stream), self.now, None, frames=self.place()
                )
                for cell in written:
                    cell.write = write
        if name.partition(".")[0] in _SYNCS and not self.machine.on_host:
            self.waited(name, next(tensors_in(args), None))

    def waited(self, why: str, tensor: Any = None) -> None:
        """The host has waited for the current stream."""
        if self.capture is None and not self.closed:
            self.order.host_waits(self.machine.stream())
            for check in self.checks:
                check.waited(why, tensor)

    def returned(self, tensor: torch.Tensor) -> None:
        """A function of torch's has returned a tensor to the script."""
        if self.capture is None and len(self.cells) and not self.closed:
            for check in self.checks:
                check.returned(tensor)

    def dropped(self, watched: WatchedGraph) -> None:
        if self.closed or watched.state in ("dropped", "capturing"):
            return
        for check in self.checks:
            check.dropped(watched)
        watched.state = "dropped"

    def finish(self) -> None:
        """The script is over."""
        for check in self.checks:
            check.finish()
        self.closed = True


class Eyes(TorchDispatchMode):
    """Every ATen call of the script's: handed to the recorder of a capture, or watched."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self.watch.machine.recorder
        if recorder is not None:
            return recorder.__torch_dispatch__(func, types, args, kwargs)
        made = func(*args, **kwargs)
        self.watch.eager(func, args, kwargs, made)
        return made


class Ears(TorchFunctionMode):
    """Calls that read a tensor on the host and dispatch no op of their own."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func in _READS or func in _MOVES:
            self._look(func, args, kwargs, made)
        elif isinstance(made, torch.Tensor):
            self.watch.returned(made)
        return made

    def _look(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if tensor is None:
            return
        place = self.watch.machine.place
        with torch._C.DisableTorchFunction():
            if func in _READS:
                if place(tensor) == "device":
                    self.watch.waited(func.__name__, tensor)
                return
            source = args[1] if func is torch.Tensor.copy_ and len(args) > 1 else tensor
            if not isinstance(source, torch.Tensor) or not isinstance(made, torch.Tensor):
                return
            lands = place(made)
            waits = lands == "host" or (lands == "pinned" and not kwargs.get("non_blocking"))
            if waits and place(source) == "device":
                self.watch.waited(func.__name__, source)


def _replaced(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    own = vars(owner).get(name) if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    if own is None:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, own)


def _guarded(watch: Watch, before: Callable[..., Any]) -> Callable[..., Any]:
    """A method of CUDAGraph's whose errors are told."""

    @functools.wraps(before)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return before(self, *args, **kwargs)
        except Exception as error:
            watch.explain(error, "script", here())
            raise

    return call


_GUARDED = (
    "instantiate", "pool", "raw_cuda_graph", "raw_cuda_graph_exec", "debug_dump",
    "enable_debug_mode", "get_graph_data",
)  # fmt: skip


def _hook_graphs(stack: contextlib.ExitStack, watch: Watch) -> None:
    kind = watch.machine.graph_class
    begin, end, replay, reset = kind.capture_begin, kind.capture_end, kind.replay, kind.reset

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            begin(self, *args, **kwargs)
        except Exception as error:
            watch.explain(error, "script", here())
            raise
        pool = args[0] if args else kwargs.get("pool")
        mode = args[1] if len(args) > 1 else kwargs.get("capture_error_mode", "global")
        watch.begun(self, pool, mode)

    @functools.wraps(end)
    def capture_end(self: Any) -> None:
        during = sys.exc_info()[1]
        try:
            end(self)
        except Exception as error:
            if watch.capture is None or watch.of(self) is not watch.capture:
                watch.explain(error, "script", here())
            elif during is None and not told(error):
                watch.explain(error, "capture", here())
                watch.failed(self, error, None)
            else:
                watch.failed(self, error, during)
            raise
        if during is not None:
            watch.failed(self, during, None)
        else:
            watch.ended(self)

    @functools.wraps(replay)
    def replay_it(self: Any) -> None:
        watch.replaying(self)
        try:
            replay(self)
        except Exception as error:
            watch.explain(error, "replay", here())
            raise
        watch.replayed(self)

    instantiate = getattr(kind, "instantiate", None)
    if instantiate is not None:

        @functools.wraps(instantiate)
        def instantiate_it(self: Any) -> None:
            instantiate(self)
            watched = watch.of(self)
            if watched is not None:
                watched.instantiated = True

        _replaced(stack, kind, "instantiate", instantiate_it)

    @functools.wraps(reset)
    def reset_it(self: Any) -> None:
        watched = watch.of(self)
        if watched is not None:
            watch.dropped(watched)
        reset(self)

    for name, value in (
        ("capture_begin", capture_begin),
        ("capture_end", capture_end),
        ("replay", replay_it),
        ("reset", reset_it),
    ):
        _replaced(stack, kind, name, value)
    for name in _GUARDED:
        if hasattr(kind, name):
            _replaced(stack, kind, name, _guarded(watch, getattr(kind, name)))


def _hook_streams(stack: contextlib.ExitStack, watch: Watch) -> None:
    order = watch.order
    stream_class: Any = torch.cuda.Stream
    event_class: Any = torch.cuda.Event

    def current(stream: Any) -> int:
        return watch.machine.stream() if stream is None else int(stream.cuda_stream)

    def around(owner: Any, name: str, after: Callable[..., None]) -> None:
        before = getattr(owner, name)

        @functools.wraps(before)
        def call(*args: Any, **kwargs: Any) -> Any:
            made = before(*args, **kwargs)
            if watch.capture is None and not watch.closed:
                after(made, *args, **kwargs)
            return made

        _replaced(stack, owner, name, call)

    around(
        stream_class,
        "wait_stream",
        lambda _made, self, stream: order.wait_stream(self.cuda_stream, stream.cuda_stream),
    )
    around(
        stream_class,
        "wait_event",
        lambda _made, self, event: order.wait_event(self.cuda_stream, event),
    )
    around(
        event_class,
        "record",
        lambda _made, self, stream=None: order.record(self, current(stream)),
    )
    around(
        stream_class,
        "record_event",
        lambda made, self, event=None: order.record(made, self.cuda_stream),
    )
    around(
        event_class,
        "wait",
        lambda _made, self, stream=None: order.wait_event(current(stream), self),
    )

    def waited(what: str) -> None:
        for check in watch.checks:
            check.waited(what, None)

    def whole(_made: Any, *_args: Any, **_kwargs: Any) -> None:
        order.host_waits()
        if not is_internal(sys._getframe(2).f_code):
            waited("torch.cuda.synchronize")

    def for_stream(_made: Any, self: Any) -> None:
        order.host_waits(self.cuda_stream)
        waited("Stream.synchronize")

    def for_event(_made: Any, self: Any) -> None:
        order.host_waits_for_event(self)
        waited("Event.synchronize")

    def asked_event(made: Any, self: Any) -> None:
        if made:
            order.host_waits_for_event(self)

    def asked_stream(made: Any, self: Any) -> None:
        if made:
            order.host_waits(self.cuda_stream)

    around(torch.cuda, "synchronize", whole)
    around(stream_class, "synchronize", for_stream)
    around(event_class, "synchronize", for_event)
    around(event_class, "query", asked_event)
    around(stream_class, "query", asked_stream)

    def emptied(_made: Any) -> None:
        if not is_internal(sys._getframe(2).f_code):
            for check in watch.checks:
                check.emptied()

    around(torch.cuda, "empty_cache", emptied)


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Hooks and modes are in place while the context is entered."""
    with contextlib.ExitStack() as stack:
        _hook_graphs(stack, watch)
        _hook_streams(stack, watch)
        stack.enter_context(in_place())
        stack.enter_context(Ears(watch))
        stack.enter_context(Eyes(watch))
        yield
