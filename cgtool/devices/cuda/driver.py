"""The driver API through cuda-bindings, with its error codes turned into exceptions."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import repeat
from typing import Any

from cgtool.model.failure import machine

try:
    cu: Any = importlib.import_module("cuda.bindings.driver")
    """cuda-bindings ships no types for its compiled modules."""
except ImportError as missing:
    raise machine(
        "cgtool cannot read CUDA graphs here: cuda-bindings cannot be imported",
        why=str(missing),
        fix="pip install 'cuda-bindings>=12.8', for the CUDA version that PyTorch is built with",
    ) from missing


class DriverError(RuntimeError):
    """A driver call returned a code other than CUDA_SUCCESS."""

    def __init__(self, call: str, code: Any) -> None:
        self.code = int(code)
        _, name = cu.cuGetErrorName(code)
        _, text = cu.cuGetErrorString(code)
        words = [part.decode() if part else "" for part in (name, text)]
        super().__init__(f"{call}: {words[0] or self.code} ({words[1]})")


def check(call: str, result: tuple[Any, ...]) -> Any:
    """The values that a binding returned after its error code: None, one value, or a tuple.

    Raises DriverError for every code but 0.
    """
    code, *values = result
    if int(code) != 0:
        raise DriverError(call, code)
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def capturing_graph(stream: int) -> Any | None:
    """The graph that a stream is being captured into, or None when it is not capturing."""
    # Without edge data, which the bindings of CUDA 12 have under another name, the call fails where
    # an edge is programmatic.
    query = getattr(cu, "cuStreamGetCaptureInfo_v3", None) or cu.cuStreamGetCaptureInfo
    code, status, _id, graph, *_ = query(cu.CUstream(stream))
    if int(code) != 0 or status != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
        return None
    return graph


Position = int | tuple[int, ...]
"""The nodes that the next one of a stream will wait for: the handle of a single one, or all of
them; () if there is none, or the stream is not capturing."""
INVALIDATED: Position = (0,)
"""Position of a stream whose capture was ended by a call that is not permitted."""


def capture_query() -> Callable[[int], Position]:
    """A function that returns the position of a stream. Through ``ctypes``, with arguments that
    need no conversion: it is called twice an op, and takes a tenth of the time of the bindings."""
    info, with_edges = capture_info()
    status, count = ctypes.c_int(), ctypes.c_size_t()
    nodes, edges = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_void_p()
    results = (nodes, edges, count) if with_edges else (nodes, count)
    references = (ctypes.byref(status), None, None, *map(ctypes.byref, results))
    queries: dict[int, Callable[[], int]] = {}

    def position(stream: int) -> Position:
        query = queries.get(stream)
        if query is None:
            query = queries[stream] = partial(info, ctypes.c_void_p(stream), *references)
        if query() != 0 or status.value != _ACTIVE:
            return INVALIDATED if status.value == _INVALIDATED else ()
        length = count.value
        return nodes[0] if length == 1 else tuple(nodes[:length])

    return position


@cache
def capture_info() -> tuple[Any, bool]:
    """The driver's function ``cuStreamGetCaptureInfo``, and whether it also returns edges."""
    library = _library()
    # The version without edges fails where one of them is programmatic.
    with_edges = hasattr(library, "cuStreamGetCaptureInfo_v3")
    return library[f"cuStreamGetCaptureInfo_{'v3' if with_edges else 'v2'}"], with_edges


def capture_info_address() -> tuple[int, bool]:
    """``capture_info`` for C++."""
    function, with_edges = capture_info()
    return _address(function), with_edges


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_ACTIVE = 1
"""CU_STREAM_CAPTURE_STATUS_ACTIVE"""
_INVALIDATED = 2
"""CU_STREAM_CAPTURE_STATUS_INVALIDATED"""


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


# Called for every node and edge of a graph. Through ``ctypes``, for the time that it takes.


def node_type(node: int) -> int:
    """The number of its type (CUgraphNodeType). Raises DriverError."""
    kind = ctypes.c_int()
    _call("cuGraphNodeGetType", "", ctypes.c_void_p(node), ctypes.byref(kind))
    return kind.value


class KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2; addresses are 0 where there is nothing."""

    _fields_ = (
        ("func", ctypes.c_uint64),
        *((f"{of}Dim{axis}", ctypes.c_uint) for of in ("grid", "block") for axis in "XYZ"),
        ("sharedMemBytes", ctypes.c_uint),
        *((name, ctypes.c_uint64) for name in ("kernelParams", "extra", "kern", "ctx")),
    )


FUNCTION_ATTRIBUTES = 4, 1, 3, 0, 6
"""CU_FUNC_ATTRIBUTE_NUM_REGS, SHARED_SIZE_BYTES, LOCAL_SIZE_BYTES, MAX_THREADS_PER_BLOCK,
BINARY_VERSION: in the order of the fields of ``Function``."""


def native_reader(native: Any) -> Any:
    """The reader of graphs in C++. ``native`` is the module of ``torch_compat.op_watch``."""
    library = _library()

    def address(name: str, version: str = "") -> int:
        function = getattr(library, name + version, None)
        return 0 if function is None else _address(function)

    info, with_edges = capture_info_address()
    return native.Reader(
        {
            "capture_info": info,
            "with_edges": with_edges,
            "exchange_mode": address("cuThreadExchangeStreamCaptureMode"),
            "free_bytes": address("cuMemGetInfo", "_v2"),
            "nodes": address("cuGraphGetNodes"),
            "edges": address("cuGraphGetEdges"),
            "edges_with_data": address("cuGraphGetEdges", "_v2"),
            "type": address("cuGraphNodeGetType"),
            "params": address("cuGraphKernelNodeGetParams", "_v2"),
            "kernel_function": address("cuKernelGetFunction"),
            "name": address("cuFuncGetName"),
            "attribute": address("cuFuncGetAttribute"),
            "parameter": address("cuFuncGetParamInfo"),
            "active_blocks": address("cuOccupancyMaxActiveBlocksPerMultiprocessor"),
        },
        FUNCTION_ATTRIBUTES,
    )


def kernel_params(node: int) -> Any:
    """``KernelParams`` of a kernel node, whose arguments stay the node's. Raises DriverError."""
    params = KernelParams()
    _call("cuGraphKernelNodeGetParams", "_v2", ctypes.c_void_p(node), ctypes.byref(params))
    return params


def graph_nodes(graph: int) -> list[int]:
    """The nodes of a CUgraph, in order of creation. Raises DriverError."""
    count = ctypes.c_size_t()
    _call("cuGraphGetNodes", "", ctypes.c_void_p(graph), None, ctypes.byref(count))
    nodes = (ctypes.c_uint64 * count.value)()
    if count.value:
        _call("cuGraphGetNodes", "", ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    return list(nodes[: count.value])


def graph_edges(graph: int) -> Iterable[tuple[int, int, int]]:
    """All edges of a CUgraph: (node, node that waits for it, data). The lowest three bytes of the
    data are ``from_port``, ``to_port`` and ``type``. Raises DriverError."""
    # The version without data fails where an edge is programmatic; before driver 12.3, none is.
    has_data = hasattr(_library(), "cuGraphGetEdges_v2")
    version = "_v2" if has_data else ""
    count, nothing = ctypes.c_size_t(), (None,) * (2 + has_data)
    _call("cuGraphGetEdges", version, ctypes.c_void_p(graph), *nothing, ctypes.byref(count))
    if not count.value:
        return ()
    columns = [(ctypes.c_uint64 * count.value)() for _ in nothing]
    _call("cuGraphGetEdges", version, ctypes.c_void_p(graph), *columns, ctypes.byref(count))
    return zip(*columns, *([] if has_data else [repeat(0)]), strict=False)


def _call(name: str, version: str, *arguments: Any) -> None:
    code = getattr(_library(), name + version)(*arguments)
    if code != 0:
        raise DriverError(name, cu.CUresult(code))


def node_count(graph: Any) -> int:
    """The number of top-level nodes of a CUgraph. Raises DriverError."""
    _, count = check("cuGraphGetNodes", cu.cuGraphGetNodes(graph, 0))
    return int(count)


def captured_nodes(stream: int) -> int:
    """Nodes so far of the graph that a stream is being captured into; 0 without a capture."""
    graph = capturing_graph(stream)
    return 0 if graph is None else node_count(graph)


def free_bytes() -> int | None:
    """Free memory of the current device; None if the driver does not report it."""
    with relaxed():
        code, free, _ = cu.cuMemGetInfo()
    return int(free) if int(code) == 0 else None


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Calls that a capture in mode ``global`` refuses to other threads are permitted here: for
    those that change nothing."""
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    code, before = cu.cuThreadExchangeStreamCaptureMode(mode)
    try:
        yield
    finally:
        if int(code) == 0:
            cu.cuThreadExchangeStreamCaptureMode(before)
