"""``cgtool check script.py`` on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cgtool.detectors.reporting import FindingLog
from cgtool.detectors.script.run import run
from cgtool.devices.cuda.driver import capturing_graph, cu
from cgtool.devices.cuda.driver import check as checked
from cgtool.devices.cuda.nodes import NODE_TYPES, FunctionTable, edges, nodes_of
from cgtool.model.finding import Finding
from cgtool.model.options import Progress
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.ops import OpRecorder
from cgtool.observe.script.script import CaptureWatcher, ObservedScript
from cgtool.torch_compat.private import CUDAGraphBase


class _Device:
    """A GPU, for the observers of a script (``observe.script.script.Device``)."""

    simulated = False

    def __init__(self) -> None:
        self.graph_class: Any = torch.cuda.CUDAGraph
        self._recorder: CaptureWatcher | None = None

    @property
    def recorder(self) -> OpRecorder | None:
        return self._recorder

    @property
    def on_host(self) -> bool:
        return False

    def capture_began(self, script: ObservedScript) -> None:
        self.capture_over()
        self._recorder = CaptureWatcher(script.annotations, script.captured_op)

    def capture_over(self) -> None:
        if self._recorder is not None:
            self._recorder.stop()
            self._recorder = None

    def place(self, tensor: torch.Tensor) -> str:
        if tensor.is_cuda:
            return "device"
        return "pinned" if tensor.is_pinned() else "host"

    def address(self, storage: torch.UntypedStorage) -> int:
        return storage.data_ptr()

    def is_dead(self, ref: StorageWeakRef) -> bool:
        return bool(ref.expired())

    def pool_bytes(self, pool: tuple[int, int]) -> int:
        return sum(
            int(segment["total_size"])
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment.get("segment_pool_id", ())) == pool
        )

    def keeps_graph(self, graph: Any) -> bool:
        try:
            # Not the method of the class, whose errors are observed.
            CUDAGraphBase.raw_cuda_graph(graph)
        except (RuntimeError, AttributeError):
            return False
        return True

    def captured_nodes(self) -> int:
        return nodes_of_capture(self.stream())

    def template(self, graph: Any) -> Hashable:
        try:
            return contents(CUDAGraphBase.raw_cuda_graph(graph))
        except (RuntimeError, AttributeError):
            return None

    def thread_modes(self) -> list[Any]:
        return []

    def stream(self) -> int:
        return int(torch.cuda.current_stream().cuda_stream)


def check(
    path: str, arguments: tuple[str, ...], progress: Progress
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """(findings, what was looked at) of a script. Raises CgtoolError as ``run`` does."""
    torch.cuda.init()
    with watch_annotations() as annotations:
        script = ObservedScript(_Device(), annotations)
        return run(path, arguments, script, FindingLog(), progress)


def nodes_of_capture(stream: int) -> int:
    """How many nodes the capture on a stream has made so far; 0 when it is not capturing."""
    graph = capturing_graph(stream)
    if graph is None:
        return 0
    code, _, count = cu.cuGraphGetNodes(graph, 0)
    return int(count) if int(code) == 0 else 0


def contents(handle: int) -> Hashable:
    """Nodes with their parameters, and edges, of a graph (a CUgraph as a number).

    Equal as long as nobody edits it. Raises DriverError.
    """
    graph = cu.CUgraph(handle)
    nodes = nodes_of(graph)
    functions = FunctionTable()
    return (
        tuple(_node(node, functions) for node in nodes),
        edges(graph, nodes),
    )


def _node(node: Any, functions: FunctionTable) -> Hashable:
    kind = NODE_TYPES.get(int(checked("cuGraphNodeGetType", cu.cuGraphNodeGetType(node))))
    if kind == "kernel":
        return int(node), kind, *_kernel(node, functions)
    if kind == "memcpy":
        copy = checked("cuGraphMemcpyNodeGetParams", cu.cuGraphMemcpyNodeGetParams(node))
        return int(node), kind, *(_number(copy, name) for name in _COPY)
    if kind == "memset":
        fill = checked("cuGraphMemsetNodeGetParams", cu.cuGraphMemsetNodeGetParams(node))
        return int(node), kind, *(_number(fill, name) for name in _FILL)
    return int(node), kind


_COPY = (
    "srcDevice", "srcHost", "srcXInBytes", "srcY", "srcZ", "dstDevice", "dstHost", "dstXInBytes",
    "dstY", "dstZ", "WidthInBytes", "Height", "Depth",
)  # fmt: skip
_FILL = ("dst", "pitch", "value", "elementSize", "width", "height")
_SIZES = (
    "gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes",
)  # fmt: skip


def _number(params: Any, name: str) -> int:
    return int(getattr(params, name) or 0)


def _kernel(node: Any, functions: FunctionTable) -> tuple[Hashable, ...]:
    params = checked("cuGraphKernelNodeGetParams", cu.cuGraphKernelNodeGetParams(node))
    function = functions.resolve(params)
    layout = None if function is None else functions.layout(function)
    table = int(params.kernelParams)
    arguments: tuple[bytes, ...] = ()
    if layout and table:
        starts = (ctypes.c_void_p * len(layout)).from_address(table)
        arguments = tuple(
            ctypes.string_at(start, size)
            for start, (_, size) in zip(starts, layout, strict=True)
            if start is not None
        )
    handle = 0 if function is None else int(function)
    return handle, *(_number(params, name) for name in _SIZES), arguments
