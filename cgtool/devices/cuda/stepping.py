"""Nodes of a CUDA graph as executables of their own.

A node is copied with its parameters and attributes into a graph that has nothing else: the
arguments of its kernel are those of the capture, in the memory of the capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from cgtool.devices.cuda.driver import (
    DriverError,
    check,
    cu,
    graph_edges,
    graph_nodes,
)
from cgtool.devices.cuda.nodes import type_of
from cgtool.devices.cuda.stamps import InCaptureRecorder
from cgtool.devices.stepping import StepFailedError, Stepper, named_arguments, named_results
from cgtool.observe.ops import OpCall
from cgtool.observe.raw_tensors import raw
from cgtool.torch_compat.allocator import memory_segments
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.private import storage_at
from cgtool.torch_compat.storages import Layout, extent


class WrittenMemory(NamedTuple):
    """Where a tensor lies that an op has written or was given in a capture."""

    name: str
    address: int
    bytes: int
    layout: Layout

    def tensor(self, device: torch.device) -> torch.Tensor:
        """A tensor there, which owns nothing."""
        storage = storage_at(self.address, device, self.bytes)
        with raw():
            empty = torch.empty(0, dtype=self.layout.dtype, device=device)
            return empty.set_(storage, 0, self.layout.shape, self.layout.stride)


class MemoryRecorder(InCaptureRecorder):
    """Also notes which memory each op writes. Keeps no tensor."""

    memory: dict[int, list[WrittenMemory]]
    """By the last node of the op."""
    arguments: list[tuple[range, list[WrittenMemory]]]
    """The nodes of each op, and where its arguments lie."""

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        before = self.launch_count()
        result = super().execute(call, func, args, kwargs)
        after = self.launch_count()
        # Of ops that call each other, the innermost returns first.
        if after > before and after - 1 not in self.memory:
            self.memory[after - 1] = _memory_of(named_results(func, args, kwargs, result))
            arguments = _memory_of(named_arguments(func, args, kwargs))
            self.arguments.append((range(before, after), arguments))
        return result


def _memory_of(named: Iterable[tuple[str, torch.Tensor]]) -> list[WrittenMemory]:
    return [
        WrittenMemory(name, tensor.data_ptr(), _size(tensor), Layout.of(tensor))
        for name, tensor in named
        if tensor.is_cuda and tensor.layout == torch.strided and tensor.numel()
    ]


def _size(tensor: torch.Tensor) -> int:
    return extent(tensor.shape, tensor.stride()) * tensor.element_size()


class CudaStepper(Stepper):
    """The graph behind a CUgraph, on one stream."""

    def __init__(
        self,
        template: Any,
        stream: torch.cuda.Stream,
        pools: Iterable[tuple[int, int]] = (),
        memory: Mapping[int, Sequence[WrittenMemory]] = MappingProxyType({}),
        arguments: Sequence[tuple[range, Sequence[WrittenMemory]]] = (),
    ) -> None:
        """``pools``: of the graph's memory; ``memory`` and ``arguments``: as of
        ``MemoryRecorder``. Raises DriverError."""
        super().__init__()
        self._memory = memory
        self._arguments = arguments
        self._device = stream.device
        self._pools = set(pools)
        handles = graph_nodes(int(template))
        number = {handle: node for node, handle in enumerate(handles)}
        self.count = len(handles)
        self.edges = [
            (number[source], number[target]) for source, target, _ in graph_edges(int(template))
        ]
        self._stream = cu.CUstream(stream.cuda_stream)
        self._graphs: list[Any] = []
        context = check("cuCtxGetCurrent", cu.cuCtxGetCurrent())
        self._executables = [
            self._executable(node, handle, context) for node, handle in enumerate(handles)
        ]

    def _executable(self, node: int, handle: int, context: Any) -> Any:
        """The node alone; None if there is nothing to launch."""
        kind = type_of(handle)
        if kind == "empty":
            return None
        copy = _COPIES.get(kind)
        if copy is None:
            self.whole[node] = f"the driver copies no node of type {kind}"
            return None
        graph = check("cuGraphCreate", cu.cuGraphCreate(0))
        try:
            copy(graph, cu.CUgraphNode(handle), context)
            return check("cuGraphInstantiate", cu.cuGraphInstantiate(graph, 0))
        except DriverError as error:
            self.whole[node] = str(error)
            return None
        finally:
            cu.cuGraphDestroy(graph)

    def clear(self) -> None:
        for segment in memory_segments():
            if tuple(segment["segment_pool_id"]) in self._pools:
                for address, size in free_blocks(segment):
                    check("cuMemsetD8", cu.cuMemsetD8(address, 0, size))

    def written(self, node: int) -> list[tuple[str, torch.Tensor]]:
        return [(each.name, each.tensor(self._device)) for each in self._memory.get(node, ())]

    def given(self, node: int) -> list[tuple[str, torch.Tensor]]:
        # Of ops that call each other, the innermost returns first.
        memory = next((each for nodes, each in self._arguments if node in nodes), ())
        return [(each.name, each.tensor(self._device)) for each in memory]

    def _launch(self, node: int) -> None:
        executable = self._executables[node]
        if executable is None:
            return
        try:
            check("cuGraphLaunch", cu.cuGraphLaunch(executable, self._stream))
            check("cuStreamSynchronize", cu.cuStreamSynchronize(self._stream))
        except DriverError as error:
            raise StepFailedError(node, error) from error

    def close(self) -> None:
        """Free the executables."""
        for executable in self._executables:
            if executable is not None:
                cu.cuGraphExecDestroy(executable)
        self._executables = [None] * self.count


def free_blocks(segment: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """(address, size) of the blocks of a segment that no tensor has."""
    for block in segment["blocks"]:
        if block["state"] == "inactive":
            yield block["address"], block["size"]


def _kernel(graph: Any, node: Any, _context: Any) -> None:
    params = check("cuGraphKernelNodeGetParams", cu.cuGraphKernelNodeGetParams(node))
    copy = check("cuGraphAddKernelNode", cu.cuGraphAddKernelNode(graph, [], 0, params))
    check("cuGraphKernelNodeCopyAttributes", cu.cuGraphKernelNodeCopyAttributes(copy, node))


def _with_context(kind: str, graph: Any, node: Any, context: Any) -> None:
    getter, adder = f"cuGraph{kind}NodeGetParams", f"cuGraphAdd{kind}Node"
    check(
        adder, getattr(cu, adder)(graph, [], 0, check(getter, getattr(cu, getter)(node)), context)
    )


def _simple(getter: str, adder: str, graph: Any, node: Any, _context: Any) -> None:
    check(adder, getattr(cu, adder)(graph, [], 0, check(getter, getattr(cu, getter)(node))))


_COPIES: dict[str, Callable[[Any, Any, Any], None]] = {
    "kernel": _kernel,
    "memcpy": partial(_with_context, "Memcpy"),
    "memset": partial(_with_context, "Memset"),
    "host": partial(_simple, "cuGraphHostNodeGetParams", "cuGraphAddHostNode"),
    "child": partial(_simple, "cuGraphChildGraphNodeGetGraph", "cuGraphAddChildGraphNode"),
    "event_record": partial(_simple, "cuGraphEventRecordNodeGetEvent", "cuGraphAddEventRecordNode"),
    "event_wait": partial(_simple, "cuGraphEventWaitNodeGetEvent", "cuGraphAddEventWaitNode"),
}
"""By the type of a node: adds a copy of it to a graph."""
