"""The memory of a capture: what the allocator did, and what the addresses in nodes point to.

Events and the snapshot at the end come from PyTorch. Tracebacks are off: they cost more than the
allocations, and autograd's threads have none. The op behind an allocation follows from the clock
instead: an op allocates and then launches, so an allocation belongs to the first node that was
created after it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from cgtool.model.capture import (
    Allocation,
    Block,
    Capture,
    Frame,
    Graph,
    Node,
    Pool,
    Segment,
    Tensor,
)
from cgtool.model.failure import cannot_tell, user_code
from cgtool.torch_compat.allocator import lists_memory, memory_segments
from cgtool.torch_compat.op_key import may_have_python_kernel
from cgtool.torch_compat.private import (
    MissingPrivateName,
    clear_cublas_workspaces,
    memory_snapshot,
    record_memory_history,
)

PoolId = tuple[int, int]
_MAX_EVENTS = 20_000_000
_GRAIN = 512
"""The allocator rounds every request up to this many bytes (CUDACachingAllocator.cpp)."""


@dataclass
class Trace:
    """The allocator's events and final state."""

    pools: tuple[Pool, ...] = ()
    others: tuple[Segment, ...] = ()
    """Segments outside the graphs' pools."""
    allocations: list[Allocation] = field(default_factory=list)
    event_times_ns: list[int] = field(default_factory=list)
    """The time of each allocator event in the graphs' pools."""
    problem: str | None = None


def start(device: int) -> None:
    """Start recording the allocator's events; earlier records are dropped."""
    if lists_memory():
        record_memory_history(
            enabled="all", context=None, max_entries=_MAX_EVENTS, device=device, clear_history=True
        )


def stop(device: int) -> None:
    if lists_memory():
        record_memory_history(enabled=None, device=device)


def read(
    device: int, pools: dict[PoolId, str], starts_ns: Sequence[int], streams: dict[int, int]
) -> Trace:
    """Snapshot and trace of the graphs' pools (id to name), for captures that began at
    ``starts_ns``. ``streams`` maps handles to stream indices."""
    if not lists_memory():
        return Trace(problem="the allocator is cudaMallocAsync, whose pools PyTorch cannot list")
    snapshot = memory_snapshot()
    by_pool: dict[PoolId, list[Segment]] = {pool: [] for pool in pools}
    others: list[Segment] = []
    for raw in snapshot["segments"]:
        if raw["device"] == device:
            by_pool.get(_pool_of(raw), others).append(
                Segment(
                    address=raw["address"],
                    bytes=raw["total_size"],
                    stream=streams.get(raw["stream"]),
                    size_class=raw["segment_type"],
                    blocks=_blocks(raw),
                    expandable=raw["is_expandable"],
                )
            )
    trace = Trace(
        pools=tuple(
            Pool(pool, name, tuple(sorted(by_pool[pool], key=lambda segment: segment.address)))
            for pool, name in pools.items()
        ),
        others=tuple(others),
    )
    traces = snapshot.get("device_traces") or []
    if device >= len(traces) or not starts_ns:
        trace.problem = "the allocator kept no trace of its events"
    else:
        _follow(trace, traces[device], starts_ns, streams)
    return trace


def _pool_of(raw: dict[str, Any]) -> PoolId:
    first, second = raw["segment_pool_id"]
    return first, second


def _blocks(raw: dict[str, Any]) -> tuple[Block, ...]:
    return tuple(
        Block(block["address"], block["size"], block["requested_size"], block["state"])
        for block in raw["blocks"]
    )


def _follow(
    trace: Trace,
    events: Sequence[dict[str, Any]],
    starts_ns: Sequence[int],
    streams: dict[int, int],
) -> None:
    """Fill the allocations and event times of ``trace`` from the events in its pools."""
    segments = sorted(
        (segment.address, segment.address + segment.bytes, index)
        for index, pool in enumerate(trace.pools)
        for segment in pool.segments
    )
    starts_us = [start_ns // 1000 for start_ns in starts_ns]
    open_at: dict[int, int] = {}
    for event in events:
        action, address = event["action"], event["addr"]
        if action not in ("alloc", "free_completed"):
            continue
        place = bisect_right(segments, (address, math.inf)) - 1
        if place < 0 or address >= segments[place][1]:
            continue
        position = len(trace.event_times_ns)
        if action == "alloc":
            graph = bisect_right(starts_us, event["time_us"]) - 1
            if graph < 0:
                continue
            requested = event["size"]
            open_at[address] = len(trace.allocations)
            trace.allocations.append(
                Allocation(
                    address=address,
                    bytes=max(_GRAIN, -(-requested // _GRAIN) * _GRAIN),
                    requested_bytes=requested,
                    pool=segments[place][2],
                    graph=graph,
                    allocated_at=position,
                    stream=streams.get(event["stream"]),
                )
            )
        else:
            index = open_at.pop(address, None)
            if index is None:
                continue
            freed = msgspec.structs.replace(trace.allocations[index], freed_at=position)
            trace.allocations[index] = freed
        trace.event_times_ns.append(event["time_us"] * 1000)
    # The snapshot has the size of a live block, which can be larger than the request: the allocator
    # does not split off a small rest of a large block.
    for pool in trace.pools:
        for segment in pool.segments:
            for block in segment.blocks:
                index = open_at.get(block.address) if block.state != "inactive" else None
                if index is not None:
                    allocation = trace.allocations[index]
                    trace.allocations[index] = msgspec.structs.replace(
                        allocation, bytes=block.bytes
                    )


def cublas_workspaces(device: int, pools: dict[PoolId, str]) -> set[int]:
    """Addresses of blocks in the graphs' pools that cuBLAS holds as workspace.

    They are in use before ``_cuda_clearCublasWorkspaces`` and free after it, which nothing else is.
    The graphs cannot be replayed afterwards, so this comes last.
    """

    def in_use() -> set[int]:
        # A block whose free is pending on a stream (``record_stream``) is not in use, and the
        # allocator frees it at a time of its own.
        return {
            block.address
            for raw in memory_segments()
            if raw["device"] == device and _pool_of(raw) in pools
            for block in _blocks(raw)
            if block.state == "active_allocated"
        }

    if not lists_memory():
        return set()
    before = in_use()
    try:
        clear_cublas_workspaces()
    except MissingPrivateName:
        return set()
    return before - in_use()


Place = tuple[int | None, int | None]
"""(index into Memory.allocations, index into Memory.tensors); one of them is None."""


class AddressBook:
    """Finds the memory that words of kernel arguments and both ends of a memcpy point to."""

    def __init__(
        self,
        trace: Trace,
        allocations: Sequence[Allocation],
        tensors: Sequence[Tensor],
        node_times_ns: Sequence[Sequence[int]],
        uses_live_only: Sequence[Container[int]] = (),
    ) -> None:
        """``node_times_ns[graph][node]``: one address serves many allocations in turn, and the
        time when the node was created decides which one it was given.

        ``uses_live_only[graph]``: nodes whose ops were seen to use no memory that is freed now.
        """
        self._uses_live_only = uses_live_only
        self._moments = [
            [bisect_right(trace.event_times_ns, time_ns) for time_ns in times_ns]
            for times_ns in node_times_ns
        ]
        self._allocations = allocations
        self._at: dict[int, list[int]] = {}
        for index, allocation in enumerate(allocations):
            self._at.setdefault(allocation.address, []).append(index)
        self._starts = sorted(self._at)
        self._reach = _reach(
            max(start + allocations[index].bytes for index in self._at[start])
            for start in self._starts
        )
        self._born = {
            start: [allocations[index].allocated_at for index in indices]
            for start, indices in self._at.items()
        }
        # Tensors by address; memory without a name is appended when it is first looked up.
        self.tensors = list(tensors)
        self._named = sorted(
            (tensor.address, index) for index, tensor in enumerate(tensors) if tensor.bytes
        )
        self._named_reach = _reach(
            address + self.tensors[index].bytes for address, index in self._named
        )
        self._blocks = sorted(
            (block.address, block.bytes, block.state)
            for segment in trace.others
            for block in segment.blocks
        )
        self._unnamed: dict[int, int] = {}
        ends = [
            *((a.address, a.address + a.bytes) for a in allocations),
            *((t.address, t.address + t.bytes) for t in tensors if t.bytes),
            *((address, address + size) for address, size, _ in self._blocks),
        ]
        self.low = min((low for low, _ in ends), default=0)
        self.high = max((high for _, high in ends), default=0)

    def lookup(
        self, address: int, graph: int, node: int, *, in_struct: bool = False
    ) -> Place | None:
        """The place of ``address`` as node ``node`` of graph ``graph`` saw it, or None.

        A word in a struct may be no pointer: nobody sets the sizes and strides of dimensions that
        tensors do not have (OffsetCalculator.cuh), or the second result of a reduction that has one
        (Reduce.cuh). They have what an earlier call left on the stack, often the address of a
        tensor of the warm-up. So they do not lead into freed memory if the op was seen to use none.
        """
        allocation = self._allocation(address, graph, node)
        if allocation is not None:
            return allocation, None
        is_stale = in_struct and any(
            node in nodes for nodes in self._uses_live_only[graph : graph + 1]
        )
        tensor = self._tensor(address, with_freed=not is_stale)
        return None if tensor is None else (None, tensor)

    def _allocation(self, address: int, graph: int, node: int) -> int | None:
        # Bodies of nodes have no creation times.
        moments = self._moments[graph] if graph < len(self._moments) else ()
        moment = moments[node] if node < len(moments) else None
        latest: int | None = None
        position = bisect_right(self._starts, address) - 1
        while position >= 0 and self._reach[position] > address:
            start = self._starts[position]
            indices = self._at[start]
            last = len(indices)
            if moment is not None:
                last = bisect_right(self._born[start], moment - 1)
            # Allocations are in order of time: of those that cover it, the last was given out.
            for index in reversed(indices[:last]):
                if latest is not None and index <= latest:
                    break
                if start + self._allocations[index].bytes > address:
                    latest = index
                    break
            position -= 1
        return latest

    def _tensor(self, address: int, *, with_freed: bool) -> int | None:
        position = bisect_right(self._named, (address, math.inf)) - 1
        while position >= 0 and self._named_reach[position] > address:
            start, index = self._named[position]
            if address < start + self.tensors[index].bytes:
                return index
            position -= 1
        position = bisect_right(self._blocks, (address, math.inf)) - 1
        if position < 0:
            return None
        start, size, state = self._blocks[position]
        is_freed = not state.startswith("active")
        if address >= start + size or (is_freed and not with_freed):
            return None
        if start not in self._unnamed:
            self._unnamed[start] = len(self.tensors)
            self.tensors.append(
                freed_block(start, size)
                if is_freed
                else Tensor("block outside the graphs' pools", "other", start, size)
            )
        return self._unnamed[start]


def _reach(ends: Iterable[int]) -> list[int]:
    """How far each interval and those before it reach, sorted by start. An address beyond that
    is in none of them."""
    return list(accumulate(ends, max))


FREED = "freed"
"""The ``Tensor.kind`` of a block outside the graphs' pools."""
_POINTING = frozenset({"kernel", "memcpy", "memset", "batch_mem_op", "conditional"})
"""Node types that contain device addresses."""
_SHOWN = 3
_WORD = 8
_IN_STRUCT = (
    "a word in a struct of kernel arguments is an address in freed memory; it may be an "
    "uninitialized member"
)


def freed_block(address: int, size: int) -> Tensor:
    """A block outside the graphs' pools that was free when the capture ended."""
    return Tensor("freed block outside the graphs' pools", FREED, address, size)


class FreedUse(NamedTuple):
    """A node that points into freed memory."""

    graph: Graph
    node: Node
    is_certain: bool
    """False where the address is a word in a struct, and the op's tensors are not all known."""
    frames: tuple[Frame, ...]

    @property
    def text(self) -> str:
        verbs = "reads or writes" if self.is_certain else "may read or write"
        return (
            f"node {self.node.id} of {self.graph.name} {verbs} memory that was already freed when "
            "the capture ended"
        )


def freed_uses(capture: Capture) -> list[FreedUse]:
    """Every node that points into freed memory.

    PyTorch's own liveness check (torch 2.13) sees what passes through the dispatcher. The nodes of
    the graph show Triton and custom kernels too, on every release.
    """
    freed = {index for index, tensor in enumerate(capture.memory.tensors) if tensor.kind == FREED}
    return [
        FreedUse(graph, node, any(certain), _frames(capture, node))
        for graph in capture.graphs
        for node in graph.nodes
        if (certain := [sure for tensor, sure in _pointees(capture, node) if tensor in freed])
    ]


def require_live_inputs(capture: Capture) -> None:
    """Require that no node points into freed memory.

    Raises CgtoolError: exit 4 for a node that does, exit 5 where that is unknown of some nodes, and
    the others do not.
    """
    uses = freed_uses(capture)
    for use in uses:
        if use.is_certain:
            raise user_code(
                use.text,
                frames=use.frames,
                why="a replay would use whatever is allocated at that address by then",
                fix="keep the tensor alive as long as the graph, as a static input",
                phase=f"capture {use.graph.name}",
            )
    unknown = [(use.graph, use.node, _IN_STRUCT) for use in uses]
    for graph in capture.graphs:
        unread = ((node, _unread(node)) for node in graph.nodes)
        unknown += [(graph, node, why) for node, why in unread if why is not None]
    if unknown:
        shown = [f"node {node.id} of {graph.name} ({node.type})" for graph, node, _ in unknown]
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        graph, node, why = unknown[0]
        raise cannot_tell(
            f"whether {len(unknown)} nodes use freed memory is unknown: "
            f"{', '.join(shown[:_SHOWN])}{more}",
            frames=_frames(capture, node),
            why=why,
            fix="leave out --check-input-liveness to capture without the check",
            phase=f"capture {graph.name}",
        )


def _pointees(capture: Capture, node: Node) -> Iterator[tuple[int | None, bool]]:
    """Indices of the tensors that existed before the capture and that a node points into, each
    with whether its address is certainly one."""
    if node.kernel is not None:
        op = None if node.origin is None else capture.origins[node.origin].op
        # The address book has decided what structs of these lead to.
        is_known = op is not None and not may_have_python_kernel(op)
        sizes = capture.functions[node.kernel.function].parameter_bytes
        for pointer in node.kernel.pointers:
            in_struct = any(size > _WORD for size in sizes[pointer.parameter :][:1])
            yield pointer.tensor, is_known or not in_struct
    if node.copy is not None:
        yield from ((node.copy.source_tensor, True), (node.copy.destination_tensor, True))
    if node.fill is not None:
        yield node.fill.destination_tensor, True


def _unread(node: Node) -> str | None:
    """Why the addresses in a node are unknown; None if they are known."""
    if node.kernel is not None:
        return node.kernel.arguments_unread
    may_point = node.type in _POINTING or node.type.startswith("type_")
    if not may_point or node.copy is not None or node.fill is not None:
        return None
    return node.detail or "cgtool does not read addresses from nodes of this type"


def _frames(capture: Capture, node: Node) -> tuple[Frame, ...]:
    if node.origin is None:
        return ()
    return tuple(capture.frames[index] for index in capture.origins[node.origin].frames)
