"""Nodes of a CUDA graph as executables of their own.

A node is copied with its parameters and attributes into a graph that has nothing else: the
arguments of its kernel are those of the capture, in the memory of the capture. The body of a child
graph is a graph whose nodes are copied likewise. The driver copies no conditional node: from the
kernels that set the conditions to the last such node, the graph's own executable runs, in which
all other nodes are disabled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from cgtool.devices.cuda.driver import (
    DriverError,
    captured_nodes,
    check,
    cu,
    graph_edges,
    graph_nodes,
)
from cgtool.devices.cuda.figures import TYPES, Memory, figures_kernel
from cgtool.devices.cuda.nodes import TIMED, read_node, type_of
from cgtool.devices.cuda.stamps import InCaptureRecorder
from cgtool.devices.stepping import (
    SteppedOp,
    Stepper,
    launched_results,
    named_arguments,
    named_scalars,
)
from cgtool.devices.values import first_bad, flat, values_from
from cgtool.model.capture import TensorValues
from cgtool.observe.compiled_code import pause_in_compiled_code
from cgtool.observe.frames import call_op
from cgtool.observe.ops import OpCall, op_name
from cgtool.observe.raw_tensors import raw
from cgtool.torch_compat import op_key
from cgtool.torch_compat.allocator import memory_segments
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.inductor import kernel_launches, read_arguments, written_arguments
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import current_raw_stream, storage_at
from cgtool.torch_compat.storages import Layout, extent

Named = Iterable[tuple[str, torch.Tensor]]


class WrittenMemory(NamedTuple):
    """Where a tensor lies that an op has written in a capture."""

    name: str
    address: int
    bytes: int
    layout: Layout

    def is_contiguous(self) -> bool:
        size = 1
        for length, stride in zip(
            reversed(self.layout.shape), reversed(self.layout.stride), strict=True
        ):
            if length != 1 and stride != size:
                return False
            size *= length
        return True

    def tensor(self, device: torch.device) -> torch.Tensor:
        """A tensor there, which owns nothing."""
        storage = storage_at(self.address, device, self.bytes)
        with raw():
            empty = torch.empty(0, dtype=self.layout.dtype, device=device)
            return empty.set_(storage, 0, self.layout.shape, self.layout.stride)


class FollowedOp(NamedTuple):
    """An op of a capture that launches work, or a Triton kernel."""

    call: OpCall | None
    """None in code that ``torch.compile`` generated."""
    node: int | None
    """Its last node; None if it has none of its own."""
    written: list[WrittenMemory]
    nodes: range
    given: list[WrittenMemory]
    """Its arguments."""
    scalars: Mapping[str, str] = MappingProxyType({})


class MemoryRecorder(InCaptureRecorder):
    """Also notes which memory each op writes. Keeps no tensor."""

    ops: list[FollowedOp]
    _last = -1
    """The last node that an op in ``ops`` has. Of ops that call each other, the innermost returns
    first."""

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        before = self.launch_count()
        result = super().execute(call, func, args, kwargs)
        after = self.launch_count()
        results = launched_results(call.name, func, args, kwargs, result)
        written = _memory_of(results or ())
        if written:
            has_own = after > before and after - 1 > self._last
            self._last = after - 1 if has_own else self._last
            last = after - 1 if has_own else None
            given = _memory_of(named_arguments(func, args, kwargs))
            scalars = named_scalars(func, args, kwargs)
            self.ops.append(FollowedOp(call, last, written, range(before, after), given, scalars))
        return result


class GeneratedMemory:
    """Notes in a capture which memory the kernels of ``torch.compile`` write, and what each op does
    around them. Under a recorder, compiled code would run eagerly."""

    def __init__(self, stream: int, ops: list[FollowedOp]) -> None:
        """``stream`` is the handle of the capturing stream; ``ops`` is filled."""
        self._count = partial(captured_nodes, stream)
        self._ops = ops
        self._last = -1
        """The last node that an op in ``ops`` has."""

    def __enter__(self) -> None:
        with contextlib.ExitStack() as entering:
            patches = entering.enter_context(Patches())
            pause_in_compiled_code(patches, op_key.paused, generated=False)
            for point in kernel_launches():
                patches.wrap(*point, self._launch)
            entering.enter_context(op_key.watch(self._op))
            self._entered = entering.pop_all()

    def __exit__(self, *exc: Any) -> None:
        self._entered.__exit__(*exc)

    def _launch(self, original: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        before = self._count()
        result = original(kernel, *args, **kwargs)
        self._note(before, written_arguments(kernel, args), read_arguments(kernel, args))
        return result

    def _op(self, func: Any, args: Args, kwargs: Kwargs, run: Any, _caller: Any) -> Any:
        before = self._count()
        result = call_op(run, args, kwargs)
        written = launched_results(op_name(func), func, args, kwargs, result)
        self._note(before, written or (), named_arguments(func, args, kwargs))
        return result

    def _note(self, before: int, written: Named, given: Named) -> None:
        last = self._count() - 1
        # Of ops that call each other, the innermost returns first.
        if last >= before and last > self._last and (memory := _memory_of(written)):
            nodes = range(before, last + 1)
            self._ops.append(FollowedOp(None, last, memory, nodes, _memory_of(given)))
            self._last = last


def _memory_of(named: Named) -> list[WrittenMemory]:
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
        ops: Sequence[FollowedOp] = (),
        graph: Any = None,
    ) -> None:
        """``pools``: of the graph's memory; ``ops``: as of ``MemoryRecorder`` or
        ``GeneratedMemory``; ``graph``: the ``CUDAGraph``, whose generators go on as in a replay.
        Raises RuntimeError if a node can run neither alone nor together with some others."""
        super().__init__()
        self._graph = graph
        self.ops = [
            SteppedOp(
                op.call, op.node, tuple(tuple(x.layout.shape) for x in op.written), op.scalars
            )
            for op in ops
            if op.call is not None
        ]
        self._memory = {op.node: op.written for op in ops if op.node is not None}
        self._firsts = {op.node: op.nodes.start for op in ops if op.node is not None}
        self._given: dict[int, list[WrittenMemory]] = {}
        for op in reversed(ops):  # of ops that call each other, the innermost returns first
            self._given.update(dict.fromkeys(op.nodes, op.given))
        self._device = stream.device
        self._pools = set(pools)
        self._handles = handles = graph_nodes(int(template))
        number = {handle: node for node, handle in enumerate(handles)}
        self.count = len(handles)
        self.edges = [
            (number[source], number[target]) for source, target, _ in graph_edges(int(template))
        ]
        self._stream = cu.CUstream(stream.cuda_stream)
        context = check("cuCtxGetCurrent", cu.cuCtxGetCurrent())
        self._kinds = kinds = [*map(type_of, handles)]
        self._together = self._run_together(kinds) if "conditional" in kinds else range(0)
        self._executables: list[Any] = []
        try:
            for node, handle in enumerate(handles):
                is_alone = kinds[node] != "empty" and node not in self._together
                self._executables.append(
                    self._executable(node, handle, context, stream) if is_alone else None
                )
        except RuntimeError:
            self.close()
            raise

    def _run_together(self, kinds: Sequence[str]) -> range:
        """The nodes that the graph's own executable runs in one launch. A condition is only defined
        in the launch in which a kernel sets it: one directly before the node."""
        conditional = [node for node, kind in enumerate(kinds) if kind == "conditional"]
        begin = min(conditional[0], *(a for a, b in self.edges if b in conditional), len(kinds))
        nodes = range(begin, conditional[-1] + 1)
        uncopied = "the driver copies no conditional node"
        for node, kind in enumerate(kinds):
            if node not in nodes and kind not in (*TIMED, *IDLE):
                raise RuntimeError(f"{uncopied}, and no launch leaves out node {node}, {kind}")
        if self._own() is None:
            raise RuntimeError(f"{uncopied}, and the graph's executable is not known")
        together = f"nodes {nodes[0]} to {nodes[-1]} run in one launch"
        self.whole = dict.fromkeys(conditional, f"{uncopied}: {together}")
        return nodes

    def _executable(self, node: int, handle: int, context: Any, stream: torch.cuda.Stream) -> Any:
        """The node alone, or a stepper of its body. Raises RuntimeError."""
        kind = self._kinds[node]
        if kind == "child":
            with contextlib.suppress(RuntimeError):  # the body runs as one node
                return CudaStepper(read_node("cuGraphChildGraphNodeGetGraph", handle), stream)
        copy = _COPIES.get(kind)
        if copy is None:
            raise RuntimeError(f"the driver copies no node of type {kind} (node {node})")
        graph = check("cuGraphCreate", cu.cuGraphCreate(0))
        try:
            copy(graph, cu.CUgraphNode(handle), context)
            return check("cuGraphInstantiate", cu.cuGraphInstantiate(graph, 0))
        except DriverError as error:
            raise RuntimeError(f"node {node} cannot be copied: {error}") from error
        finally:
            cu.cuGraphDestroy(graph)

    def clear(self) -> None:
        for segment in memory_segments():
            if tuple(segment["segment_pool_id"]) in self._pools:
                for address, size in free_blocks(segment):
                    check("cuMemsetD8", cu.cuMemsetD8(address, 0, size))

    @property
    def moves_generators(self) -> bool:
        known = all(kind in (*TIMED, *IDLE) for kind in self._kinds)
        return known and self._own() is not None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A replay first gives the nodes the state of the generators, and moves that on: here one
        does, of the whole graph without its work."""
        if self.moves_generators:
            with self._others_disabled(self._own()):
                self._graph.replay()
                check("cuStreamSynchronize", cu.cuStreamSynchronize(self._stream))
        yield

    def _own(self) -> Any:
        """The executable of the graph; None in PyTorch 2.8, or if it was not instantiated."""
        try:
            return cu.CUgraphExec(int(self._graph.raw_cuda_graph_exec()))
        except (AttributeError, RuntimeError):
            return None

    @contextlib.contextmanager
    def _others_disabled(self, executable: Any) -> Iterator[None]:
        """In this block, launches of the graph's executable run only nodes that run together."""
        others = [
            handle
            for node, handle in enumerate(self._handles)
            if node not in self._together and self._kinds[node] in TIMED
        ]
        try:
            set_enabled(executable, others, on=False)
            yield
        except Exception:
            with contextlib.suppress(DriverError):  # after a fault it is of no use
                set_enabled(executable, others, on=True)
            raise
        set_enabled(executable, others, on=True)

    def written(self, node: int) -> list[tuple[str, torch.Tensor]]:
        if node in self._together:
            return []
        return [(each.name, each.tensor(self._device)) for each in self._memory.get(node, ())]

    def values(self, node: int) -> tuple[TensorValues, ...]:
        memory = self._memory.get(node, ())
        kernel = figures_kernel(torch.cuda.current_device())
        is_known = all(each.layout.dtype in TYPES for each in memory)
        if kernel is None or not memory or not is_known or node in self._together:
            return super().values(node)
        read, kept = [], []
        for each in memory:
            known = Memory(each.address, each.bytes, each.layout.dtype)
            if each.address % 4 or not each.is_contiguous():
                kept.append(flat(each.tensor(self._device)))
                known = Memory(kept[-1].data_ptr(), kept[-1].nbytes, each.layout.dtype)
            read.append(known)
        figures = kernel.read(read, current_raw_stream(torch.cuda.current_device()))
        return tuple(
            values_from(
                found,
                each.name,
                each.layout.dtype,
                each.layout.shape,
                known.bytes // known.word_bytes,
                partial(_first_bad, each, self._device),
            )
            for each, known, found in zip(memory, read, figures, strict=True)
        )

    def first(self, node: int) -> int:
        return self._firsts.get(node, node)

    def given(self, node: int) -> list[tuple[str, torch.Tensor]]:
        return [(each.name, each.tensor(self._device)) for each in self._given.get(node, ())]

    def _launch(self, node: int) -> None:
        executable = self._executables[node]
        try:
            if isinstance(executable, CudaStepper):
                executable.step()
            elif executable is not None:
                self._execute(executable)
            elif node == self._together.stop - 1:
                own = self._own()
                with self._others_disabled(own):
                    self._execute(own)
        except DriverError as error:
            if node not in self._together:
                raise
            nodes = f"nodes {self._together[0]} to {self._together[-1]}"
            raise RuntimeError(f"{error}, in one launch of {nodes}") from error

    def _execute(self, executable: Any) -> None:
        check("cuGraphLaunch", cu.cuGraphLaunch(executable, self._stream))
        check("cuStreamSynchronize", cu.cuStreamSynchronize(self._stream))

    def close(self) -> None:
        """Free the executables."""
        for executable in self._executables:
            if isinstance(executable, CudaStepper):
                executable.close()
            elif executable is not None:
                cu.cuGraphExecDestroy(executable)
        self._executables = [None] * self.count


def _first_bad(memory: WrittenMemory, device: torch.device) -> tuple[int, ...]:
    return first_bad(memory.tensor(device))


def set_enabled(executable: Any, nodes: Iterable[int], *, on: bool) -> None:
    """Have launches of an executable run these nodes, or not: kernels, copies and fills. Raises
    DriverError."""
    for node in nodes:
        done = cu.cuGraphNodeSetEnabled(executable, cu.CUgraphNode(node), int(on))
        check("cuGraphNodeSetEnabled", done)


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
IDLE = ("empty", "event_record", "event_wait")
"""Types of nodes that compute nothing."""
