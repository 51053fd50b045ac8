"""The driver API through cuda-bindings, with its error codes turned into exceptions."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
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
    # Unsuffixed in the bindings of CUDA 13, versioned before.
    query = getattr(cu, "cuStreamGetCaptureInfo", None) or cu.cuStreamGetCaptureInfo_v2
    code, status, _id, graph, *_ = query(cu.CUstream(stream))
    if int(code) != 0 or status != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
        return None
    return graph


def capture_query() -> Callable[[int], tuple[int, ...]]:
    """A function that says which nodes the next one of a capturing stream will wait for, by their
    handles; () for a stream that is not capturing. Through ``ctypes``: it is called twice an op,
    and takes a tenth of the time of the bindings."""
    library = ctypes.CDLL("libcuda.so.1")
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    nodes, edges, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    query = getattr(library, "cuStreamGetCaptureInfo_v3", None)
    # The version without edges fails where one of them is programmatic.
    results: list[Any] = [status, number, graph, nodes, edges, count]
    if query is None:
        query = library.cuStreamGetCaptureInfo_v2
        results.remove(edges)
    references = tuple(map(ctypes.byref, results))
    sizes = [ctypes.c_void_p * length for length in range(_FEW)]

    def waited_for(stream: int) -> tuple[int, ...]:
        if query(ctypes.c_void_p(stream), *references) != 0 or not status.value:
            return ()
        length = count.value
        if not length:
            return ()
        kind = sizes[length] if length < _FEW else ctypes.c_void_p * length
        return tuple(kind.from_address(nodes.value or 0))

    return waited_for


_FEW = 8


def node_count(graph: Any) -> int:
    """The number of top-level nodes of a CUgraph. Raises DriverError."""
    _, count = check("cuGraphGetNodes", cu.cuGraphGetNodes(graph, 0))
    return int(count)


def captured_nodes(stream: int) -> int:
    """Nodes so far of the graph that a stream is being captured into; 0 without a capture."""
    graph = capturing_graph(stream)
    return 0 if graph is None else node_count(graph)
