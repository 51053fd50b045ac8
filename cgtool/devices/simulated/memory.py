"""The pool that the recorded lifetimes would make on a GPU, by the allocator's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from cgtool.devices.simulated.allocator import PoolBlock, PrivatePool
from cgtool.devices.simulated.lifetimes import Life
from cgtool.model.capture import Allocation, Block, Memory, Pool, Segment, Tensor
from cgtool.observe.ops import Record
from cgtool.observe.origins import OriginTable

_MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::mv")
WORKSPACE_BYTES = 32 << 20
"""Of cuBLAS on Hopper, for each pair of handle and stream; autograd's thread has its own handle.
Seen in the graph pools of an H200 (torch 2.11)."""
LT_WORKSPACE_BYTES = 1 << 20
"""Of cublasLt, which serves ``addmm`` with a bias. Seen there too."""


def _workspaces(op: str) -> tuple[int, ...]:
    if op.startswith("aten::addmm"):
        return (WORKSPACE_BYTES, LT_WORKSPACE_BYTES)
    return (WORKSPACE_BYTES,) if op.startswith(_MATMULS) else ()


@dataclass
class _Event:
    at: int
    life: int
    frees: bool


def predict(
    lives: Sequence[Life],
    record: Record,
    table: OriginTable,
    pool_of_graph: Sequence[int],
    pool_names: Sequence[str],
    backward: Sequence[bool],
    labels: dict[int, str],
    tensors: tuple[Tensor, ...],
    streams: dict[str, int],
) -> Memory:
    """Feed the lifetimes to the model. ``labels`` go by index of life; ``backward`` says of each
    graph whether it is one."""
    pools = [PrivatePool(0x10_0000_0000 * (index + 1)) for index in range(len(pool_names))]
    events = [_Event(life.born, index, False) for index, life in enumerate(lives)]
    events += [
        _Event(life.died, index, True) for index, life in enumerate(lives) if life.died is not None
    ]
    events.sort(key=lambda one: one.at)
    placed: dict[int, PoolBlock] = {}
    found: list[Allocation] = []
    slots: dict[int, int] = {}
    workspaces: set[tuple[int, bool, int]] = set()
    clock = 0
    for event in events:
        life = lives[event.life]
        pool_index = pool_of_graph[life.graph]
        pool = pools[pool_index]
        if event.frees:
            pool.free(placed.pop(event.life))
            slot = slots[event.life]
            found[slot] = _freed(found[slot], clock)
            clock += 1
            continue
        origin = table.add(life.call, record)
        stream = streams.setdefault(life.stream, len(streams))
        in_backward = backward[life.graph] or life.call.autograd_node is not None
        for size in _workspaces(life.call.name) if stream == 0 else ():
            # Streams of the user's own have theirs since the warm-up, outside the pool.
            key = (pool_index, in_backward, size)
            if key not in workspaces:
                workspaces.add(key)
                block = pool.allocate(size)
                found.append(
                    _allocation(block, pool_index, life.graph, clock, origin, "cuBLAS workspace", 0)
                )
                clock += 1
        block = placed[event.life] = pool.allocate(life.bytes, stream)
        slots[event.life] = len(found)
        found.append(
            _allocation(
                block, pool_index, life.graph, clock, origin, labels.get(event.life), stream
            )
        )
        clock += 1
    return Memory(
        pools=tuple(
            Pool(
                (0, index + 1),
                name,
                tuple(_segment(pool, first) for first in pool.segments),
            )
            for index, (name, pool) in enumerate(zip(pool_names, pools, strict=True))
        ),
        allocations=tuple(found),
        tensors=tensors,
        exact=False,
    )


def _allocation(
    block: PoolBlock,
    pool: int,
    graph: int,
    clock: int,
    origin: int,
    label: str | None,
    stream: int,
) -> Allocation:
    return Allocation(
        address=block.address,
        bytes=block.bytes,
        requested_bytes=block.requested,
        pool=pool,
        graph=graph,
        allocated_at=clock,
        stream=stream,
        origin=origin,
        label=label,
    )


def _freed(allocation: Allocation, clock: int) -> Allocation:

    return msgspec.structs.replace(allocation, freed_at=clock, label=None)


def _segment(pool: PrivatePool, first: PoolBlock) -> Segment:
    blocks = pool.blocks(first)
    return Segment(
        address=first.address,
        bytes=sum(block.bytes for block in blocks),
        stream=first.stream,
        size_class="small" if first.small else "large",
        blocks=tuple(
            Block(
                block.address,
                block.bytes,
                block.requested,
                "active_allocated" if block.used else "inactive",
            )
            for block in blocks
        ),
    )
