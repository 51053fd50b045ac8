"""The graphs that a program captures on a GPU, read while it runs (``cgtool run``)."""

from __future__ import annotations

import contextlib
import sys
import threading
from functools import cached_property, partial
from types import FrameType
from typing import Any

import torch

from cgtool.devices.cuda.device import CudaDevice
from cgtool.devices.cuda.driver import captured_nodes, capturing_graph, cu
from cgtool.devices.cuda.memory import AddressBook, Trace
from cgtool.devices.cuda.nodes import FunctionTable, GraphReader, Provenance
from cgtool.model.capture import Contents, Environment, Function
from cgtool.observe.annotations import Annotations
from cgtool.observe.ops import OpRecorder, Running, paths
from cgtool.observe.origins import OriginTable
from cgtool.observe.script.script import running_modules
from cgtool.torch_compat import op_key
from cgtool.torch_compat.private import dynamo_is_loaded


class _RunningModules:
    """Names the innermost module that is running, from the frames of its call: no hook needed."""

    def __init__(self) -> None:
        self._roots: dict[int, tuple[torch.nn.Module, dict[int, str]]] = {}
        """By id; kept, so that an id stays its own until the capture is over."""

    def current(self) -> Running | None:
        running = list(running_modules(sys._getframe(1)))
        if not running:
            return None
        module, root = running[0], running[-1]
        if id(root) not in self._roots:
            self._roots[id(root)] = root, paths({"": root})
        kind = type(module).__name__
        return self._roots[id(root)][1].get(id(module), f"<{kind}>"), kind


class _Recorder(OpRecorder):
    """Names the ops of a capture; each call knows which nodes are its own."""

    def __init__(self, stream: int) -> None:
        super().__init__({}, Annotations(), partial(captured_nodes, stream))
        self.modules = _RunningModules()  # type: ignore[assignment] # without global hooks
        self._home = threading.get_ident()


_watched = threading.Lock()
"""One capture at a time has its ops watched: the others of other threads do not."""


class _Watch:
    """A capture in progress."""

    def __init__(self, reader: GraphReader, table: OriginTable) -> None:
        self._reader = reader
        self._table = table
        self._stream = int(torch.cuda.current_stream().cuda_stream)
        self._recorder = _Recorder(self._stream)
        self._watching = contextlib.ExitStack()
        # Dynamo's guards see the thread's keys: compiled code would be compiled anew.
        if not op_key.is_supported() or (dynamo_is_loaded() and not _in_graph_trees()):
            return
        if _watched.acquire(blocking=False):
            self._watching.callback(_watched.release)
            self._watching.enter_context(op_key.watch(self._recorder.observe))

    def read(self) -> Contents | None:
        graph = capturing_graph(self._stream)
        if graph is None:
            return None
        with _relaxed():
            contents = self._reader.read(graph, 0, self._origins())
        return tuple(contents.nodes), contents.edges

    def stop(self) -> None:
        self._watching.close()

    def _origins(self) -> list[Provenance]:
        origins: list[Provenance] = [(None, None, None)] * captured_nodes(self._stream)
        record = self._recorder.record
        for call in record.calls:
            start, end = call.launches
            if start < end:
                origin = self._table.add(call, record)
                origins[start:end] = [(origin, call.index, None)] * (end - start)
        return origins


class CudaRecording:
    """A GPU, for ``recording.recorder``."""

    graph_class: Any = torch.cuda.CUDAGraph

    def __init__(self) -> None:
        self._functions = FunctionTable()

    @cached_property
    def _reader(self) -> GraphReader:
        return GraphReader(self._functions, AddressBook(Trace(), (), (), ()))

    def environment(self) -> Environment:
        return CudaDevice().environment()

    def watch(self, graph: Any, table: OriginTable) -> _Watch:
        return _Watch(self._reader, table)

    def functions(self) -> tuple[Function, ...]:
        return tuple(self._functions.functions)

    def reserved_bytes(self) -> int | None:
        return int(torch.cuda.memory_reserved())


@contextlib.contextmanager
def _relaxed() -> Any:
    """Calls that a capture in mode ``global`` refuses to other threads are permitted here: those
    that read a graph change nothing."""
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    code, before = cu.cuThreadExchangeStreamCaptureMode(mode)
    try:
        yield
    finally:
        if int(code) == 0:
            cu.cuThreadExchangeStreamCaptureMode(before)


def _in_graph_trees() -> bool:
    """Whether compiled code is running, which no guard is checked in."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("/torch/_inductor/cudagraph_trees.py"):
            return True
        frame = frame.f_back
    return False
