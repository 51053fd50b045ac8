"""What the template of a graph holds, to see whether it was edited."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from typing import Any

from cgtool.devices.cuda.driver import capturing_graph, check, cu
from cgtool.devices.cuda.functions import FunctionTable
from cgtool.devices.cuda.nodes import NODE_TYPES, edges, nodes_of


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
        tuple(_node(one, functions) for one in nodes),
        tuple(edges(graph, [int(one) for one in nodes])),
    )


def _node(node: Any, functions: FunctionTable) -> Hashable:
    kind = NODE_TYPES.get(int(check("cuGraphNodeGetType", cu.cuGraphNodeGetType(node))))
    if kind == "kernel":
        return int(node), kind, *_kernel(node, functions)
    if kind == "memcpy":
        copy = check("cuGraphMemcpyNodeGetParams", cu.cuGraphMemcpyNodeGetParams(node))
        return int(node), kind, *(_number(copy, name) for name in _COPY)
    if kind == "memset":
        fill = check("cuGraphMemsetNodeGetParams", cu.cuGraphMemsetNodeGetParams(node))
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
    params = check("cuGraphKernelNodeGetParams", cu.cuGraphKernelNodeGetParams(node))
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
