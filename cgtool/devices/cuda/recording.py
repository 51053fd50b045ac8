"""The graphs that a program captures on a GPU, read while it runs (``cgtool run``)."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import FrameType
from typing import Any

import torch

from cgtool.devices.cuda.device import CudaDevice
from cgtool.devices.cuda.driver import capture_query, capturing_graph, cu
from cgtool.devices.cuda.memory import AddressBook, Trace
from cgtool.devices.cuda.nodes import FunctionTable, GraphReader, Provenance, nodes_of
from cgtool.model.capture import Contents, Environment, Function
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import Site, chain_or_waiting, is_generated, is_internal_file, line_of
from cgtool.observe.ops import OpRecorder, RootedModuleStack
from cgtool.observe.origins import OriginTable
from cgtool.torch_compat import op_key
from cgtool.torch_compat.inductor import kernel_launch, source_frames, source_ops
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import current_raw_stream, has_compiled, next_sequence_number


class _Position:
    """Where the capture of a stream is: the nodes that the next one would wait for."""

    def __init__(self) -> None:
        self._query = capture_query()
        self._device = torch.cuda.current_device()
        self.seen: list[tuple[int, ...]] = []

    def count(self) -> int:
        """Note the position of the current stream; its number among those noted."""
        self.seen.append(self._query(current_raw_stream(self._device)))
        return len(self.seen) - 1

    def ranges(self, handles: Sequence[int]) -> list[int]:
        """For each position noted, how many of the nodes with these handles, in order of their
        creation, there were."""
        number = {handle: index + 1 for index, handle in enumerate(handles)}
        counts: list[int] = []
        for nodes in self.seen:
            known = max((number.get(node, 0) for node in nodes), default=0)
            # A stream that was forked may still be at an earlier node.
            counts.append(max(known, counts[-1] if counts else 0))
        return counts


@dataclass
class _Launch:
    """A Triton kernel that generated code launched."""

    site: Site | None
    """The line of the generated code."""
    launches: tuple[int, int]


class _Recorder(OpRecorder):
    """Names the ops of a capture; ``launches`` of a call are numbers of positions."""

    def __init__(self) -> None:
        self.kernels: list[_Launch] = []
        self.position = _Position()
        super().__init__({}, Annotations(), self.position.count)
        self.modules = RootedModuleStack({})
        self._home = threading.get_ident()
        self.running.next_sequence = next_sequence_number()

    def launch(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of the method that launches a Triton kernel."""
        start = self.launch_count()
        try:
            return original(*args, **kwargs)
        finally:
            launches = start, self.launch_count()
            self.kernels.append(_Launch(_generated_site(sys._getframe(1)), launches))


def _generated_site(frame: FrameType | None) -> Site | None:
    """The innermost frame of generated code."""
    while frame is not None:
        if is_generated(frame.f_code.co_filename):
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None


_watched = threading.Lock()
"""One capture at a time has its ops watched: the others of other threads do not."""


class _Watch:
    """A capture in progress."""

    def __init__(self, reader: GraphReader, table: OriginTable) -> None:
        self._reader = reader
        self._table = table
        self._stream = int(torch.cuda.current_stream().cuda_stream)
        self._recorder: _Recorder | None = None
        self._chain: tuple[Site, ...] = ()
        self._watching = contextlib.ExitStack()
        compiled = _in_graph_trees()
        # Dynamo's guards see the thread's keys: compiled code would be compiled anew.
        if not op_key.is_supported() or (has_compiled() and not compiled):
            return
        if _watched.acquire(blocking=False):
            self._watching.callback(_watched.release)
            self._recorder = _Recorder()
            if compiled:
                self._chain = chain_or_waiting(sys._getframe(1))
                point = kernel_launch()
                if point is not None:
                    patches = self._watching.enter_context(Patches())
                    patches.wrap(*point, self._recorder.launch)
            else:
                self._watching.enter_context(self._recorder.modules)
            self._watching.enter_context(op_key.watch(self._recorder.observe))

    def read(self) -> Contents | None:
        graph = capturing_graph(self._stream)
        if graph is None:
            return None
        with _relaxed():
            handles = [int(node) for node in nodes_of(graph)]
            contents = self._reader.read(graph, 0, self._origins(handles))
        return tuple(contents.nodes), contents.edges

    def stop(self) -> None:
        self._watching.close()

    def _origins(self, handles: Sequence[int]) -> list[Provenance]:
        origins: list[Provenance] = [(None, None, None)] * len(handles)
        recorder = self._recorder
        if recorder is None:
            return origins
        counts = recorder.position.ranges(handles)

        def place(launches: tuple[int, int], origin: Callable[[], int], call: int | None) -> None:
            start, end = counts[launches[0]], counts[launches[1]]
            if start < end:
                origins[start:end] = [(origin(), call, None)] * (end - start)

        for kernel in recorder.kernels:
            place(kernel.launches, partial(self._generated, kernel.site, None), None)
        for call in recorder.record.calls:
            site = call.innermost
            if site is not None and is_generated(site[0].co_filename):
                origin = partial(self._generated, site, call.name)
            else:
                origin = partial(self._table.add, call, recorder.record)
            place(call.launches, origin, call.index)
        return origins

    def _generated(self, site: Site | None, op: str | None) -> int:
        """The origin of what a line of generated code launched."""
        if site is None:
            return self._table.add_generated(op, (), self._chain)
        file, line = site[0].co_filename, line_of(site)
        if op is None and (ops := source_ops(file, line)):
            op = "aten::" + "+".join(name.removeprefix("aten.") for name in ops)
        frames = [frame for frame in source_frames(file, line) if not is_internal_file(frame.file)]
        return self._table.add_generated(op, frames, self._chain)


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

    def prepare(self) -> None:
        op_key.prepare()

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
