"""The pool that the recorded lifetimes would produce on a GPU, by the allocator's rules."""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.model.capture import Allocation, Block, Graph, Memory, Pool, Segment, Tensor
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.observe.origins import OriginTable
from cgtool.observe.tensors import strided_parts, tensors_in
from cgtool.torch_compat.allocator import SMALL_REQUEST
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.storages import StorageRef

_MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::mv")
WORKSPACE_BYTES = 32 << 20
"""Workspace of cuBLAS on Hopper, for each pair of handle and stream; autograd's thread has its own
handle. Measured in the graph pools of an H200 (torch 2.11)."""
LT_WORKSPACE_BYTES = 1 << 20
"""Workspace of cublasLt, which runs ``addmm`` with a bias. Measured there too."""


def _workspaces(op: str) -> tuple[int, ...]:
    if op.startswith("aten::addmm"):
        return (WORKSPACE_BYTES, LT_WORKSPACE_BYTES)
    return (WORKSPACE_BYTES,) if op.startswith(_MATMULS) else ()


def predict(
    lifetimes: LifetimeRecorder,
    graphs: Sequence[Graph],
    separate_pools: bool,
    table: OriginTable,
    streams: dict[str, int],
    tensors: tuple[Tensor, ...],
) -> Memory:
    """Run the lifetimes through the model of the allocator. ``streams``: index by name."""
    names = [graph.name for graph in graphs] if separate_pools else ["graphs"]
    pools = [PrivatePool(number) for number in range(len(names))]
    allocations: list[Allocation] = []
    moments = itertools.count()
    node_of = _nodes_of_calls(graphs)

    def pool_of(life: Lifetime) -> int:
        return life.graph if separate_pools else 0

    def allocate(life: Lifetime, size: int, label: str | None, stream: int) -> PoolBlock:
        pool = pool_of(life)
        block = pools[pool].allocate(size, stream)
        origin = table.add(life.call, lifetimes.record)
        allocations.append(
            Allocation(
                address=block.address,
                bytes=block.bytes,
                requested_bytes=block.requested,
                pool=pool,
                graph=life.graph,
                allocated_at=next(moments),
                stream=stream,
                origin=origin,
                node=node_of(life, origin),
                label=label,
            )
        )
        return block

    # A call that is not like the next one may run a backward that the capture does not.
    lives = [life for life in lifetimes.lives if life.graph < len(graphs)]
    events = [(life.born, index, False) for index, life in enumerate(lives)]
    events += [
        (life.died, index, True) for index, life in enumerate(lives) if life.died is not None
    ]
    placed: dict[int, tuple[PoolBlock, int]] = {}
    """By life: its block, and the index of its allocation."""
    workspaces: set[tuple[int, bool, int]] = set()
    for _, index, frees in sorted(events):
        life = lives[index]
        if frees:
            block, position = placed.pop(index)
            pools[pool_of(life)].free(block)
            allocations[position] = replace(
                allocations[position], freed_at=next(moments), label=None
            )
            continue
        stream = streams.setdefault(life.stream, len(streams))
        is_backward = graphs[life.graph].phase == "backward" or bool(life.call.autograd_node)
        # Other streams got their workspaces during warm-up, outside the pool.
        for size in _workspaces(life.call.name) if stream == 0 else ():
            workspace = (pool_of(life), is_backward, size)
            if workspace not in workspaces:
                workspaces.add(workspace)
                allocate(life, size, "cuBLAS workspace", stream)
        placed[index] = allocate(life, life.bytes, life.label, stream), len(allocations) - 1
    return Memory(
        pools=tuple(
            Pool((0, index + 1), name, tuple(_segment(pool, first) for first in pool.segments))
            for index, (name, pool) in enumerate(zip(names, pools, strict=True))
        ),
        allocations=tuple(allocations),
        tensors=tensors,
        exact=False,
    )


def _nodes_of_calls(graphs: Sequence[Graph]) -> Callable[[Lifetime, int], int | None]:
    """A function from a lifetime and its origin to the node of the call that allocated it. The
    warm-up iteration made the same calls as the capture: the n-th that has an origin and allocates
    is the n-th node with it. None for a call that launched nothing, as ``torch.empty``."""
    waiting: dict[tuple[int, int | None], deque[int]] = defaultdict(deque)
    for at, graph in enumerate(graphs):
        for node in graph.nodes:
            waiting[at, node.origin].append(node.id)
    known: dict[int, int | None] = {}

    def node_of(life: Lifetime, origin: int) -> int | None:
        if life.call.index not in known:
            nodes = waiting[life.graph, origin]
            known[life.call.index] = nodes.popleft() if nodes else None
        return known[life.call.index]

    return node_of


def _segment(pool: PrivatePool, first: PoolBlock) -> Segment:
    blocks = tuple(
        Block(
            block.address,
            block.bytes,
            block.requested,
            "active_allocated" if block.used else "inactive",
        )
        for block in pool.blocks(first)
    )
    return Segment(
        address=first.address,
        bytes=sum(block.bytes for block in blocks),
        stream=first.stream,
        size_class="small" if first.small else "large",
        blocks=blocks,
    )


GRAIN = 512
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
MIN_LARGE_REQUEST = 10 << 20
LARGE_ROUNDING = 2 << 20


def round_size(requested: int) -> int:
    """Bytes of the block for a request of so many bytes."""
    return GRAIN if requested < GRAIN else -(-requested // GRAIN) * GRAIN


def segment_size(rounded: int) -> int:
    """Bytes to reserve when no free block is large enough."""
    if rounded <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if rounded < MIN_LARGE_REQUEST:
        return LARGE_SEGMENT
    return -(-rounded // LARGE_ROUNDING) * LARGE_ROUNDING


@dataclass(slots=True)
class PoolBlock:
    """A part of a segment."""

    address: int
    bytes: int
    stream: int
    small: bool
    requested: int = 0
    used: bool = False
    previous: PoolBlock | None = field(default=None, repr=False)
    next: PoolBlock | None = field(default=None, repr=False)


class PrivatePool:
    """Allocates and frees like the caching allocator in a private pool."""

    def __init__(self, number: int, reserved: Callable[[int], object] = lambda _: None) -> None:
        """``number``: counts pools from 0; each has addresses of its own. ``reserved`` is called
        with the bytes of each new segment."""
        self._reserved = reserved
        self._next_address = 0x10_0000_0000 * (number + 1)
        self.segments: list[PoolBlock] = []
        """First block of each segment; the others follow through ``next``."""
        self._free: dict[tuple[int, bool], list[tuple[int, int]]] = {}
        self._blocks: dict[int, PoolBlock] = {}

    def allocate(self, requested: int, stream: int = 0) -> PoolBlock:
        """A block of at least ``requested`` bytes."""
        size = round_size(requested)
        small = size <= SMALL_REQUEST
        free = self._free.setdefault((stream, small), [])
        position = bisect_left(free, (size, 0))
        if position < len(free):
            _, address = free.pop(position)
            block = self._blocks[address]
        else:
            total = segment_size(size)
            block = PoolBlock(self._next_address, total, stream, small)
            self._next_address += total
            self._blocks[block.address] = block
            self.segments.append(block)
            self._reserved(total)
        rest = block.bytes - size
        if rest >= GRAIN if small else rest > SMALL_REQUEST:
            tail = PoolBlock(
                block.address + size, rest, stream, small, previous=block, next=block.next
            )
            if block.next is not None:
                block.next.previous = tail
            block.next = tail
            block.bytes = size
            self._blocks[tail.address] = tail
            insort(free, (tail.bytes, tail.address))
        block.used, block.requested = True, requested
        return block

    def free(self, block: PoolBlock) -> None:
        """Free a block and merge it with free neighbors."""
        block.used, block.requested = False, 0
        free = self._free.setdefault((block.stream, block.small), [])
        for neighbor in (block.next, block.previous):
            if neighbor is None or neighbor.used:
                continue
            free.remove((neighbor.bytes, neighbor.address))
            first, second = (block, neighbor) if neighbor is block.next else (neighbor, block)
            first.bytes += second.bytes
            first.next = second.next
            if second.next is not None:
                second.next.previous = first
            del self._blocks[second.address]
            block = first
        insort(free, (block.bytes, block.address))

    def blocks(self, segment: PoolBlock) -> list[PoolBlock]:
        """The blocks of a segment, in order of address."""
        blocks = []
        block: PoolBlock | None = segment
        while block is not None:
            blocks.append(block)
            block = block.next
        return blocks


@dataclass(slots=True)
class Lifetime:
    call: OpCall
    graph: int
    bytes: int
    stream: str
    """Name of the stream that it was allocated on."""
    born: int
    """Position in the sequence of allocations and frees, from 0."""
    died: int | None = None
    address: int = 0
    """Identity of the CPU storage, which identifies an output."""
    label: str | None = None
    """The name of its holder at the end."""


class LifetimeRecorder(OpRecorder):
    """Tracks every storage that ops allocate until it is freed, and keeps none alive."""

    def __init__(self, roots: Any, annotations: Any, device: DeviceModel) -> None:
        super().__init__(roots, annotations)
        self.device = device
        self.lives: list[Lifetime] = []
        self.graph = 0
        self.events = 0
        self._open: dict[int, tuple[StorageRef, Lifetime]] = {}

    def sweep(self) -> None:
        """Note which storages were freed since the last call."""
        dead = [key for key, (reference, _) in self._open.items() if reference.expired()]
        for key in dead:
            _, life = self._open.pop(key)
            life.died = self.events
            self.events += 1

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if self.device.on_host:
            return self.run(func, args, kwargs)
        self.sweep()
        current = self.device.current
        # Work on the default stream here is captured on the capturing stream later.
        stream = "capture stream" if current is self.device.default else current.name
        before = {storage.key for storage in _storages((args, kwargs))}
        output = self.run(func, args, kwargs)
        for storage in _storages(output):
            if storage.key in before or storage.key in self._open or storage.bytes == 0:
                continue
            life = Lifetime(
                call, self.graph, storage.bytes, stream, self.events, address=storage.address
            )
            self.events += 1
            self.lives.append(life)
            self._open[storage.key] = storage, life
        return output


def _storages(value: Any) -> Iterator[StorageRef]:
    """Storages of all tensors in ``value``, including the parts of sparse and jagged ones."""
    for tensor in tensors_in(value):
        yield from (StorageRef(part) for _, part in strided_parts(tensor))
