"""A model of PyTorch's CUDA caching allocator, for one private pool.

Rules and constants: c10/cuda/CUDACachingAllocator.cpp. Requests are rounded up to 512 bytes;
requests of up to 1 MiB come from the small pool, whose segments are 2 MiB; larger ones from the
large pool, whose segments are 20 MiB for requests under 10 MiB and the request rounded up to 2 MiB
from there. The best fit is the smallest free block that is large enough, the lowest address among
equals; a block is split when the rest is worth keeping; neighbours merge on free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

GRAIN = 512
SMALL_REQUEST = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
MIN_LARGE_REQUEST = 10 << 20
LARGE_ROUNDING = 2 << 20


def round_size(requested: int) -> int:
    """Bytes of the block that serves a request."""
    return GRAIN if requested < GRAIN else -(-requested // GRAIN) * GRAIN


def segment_size(rounded: int) -> int:
    """Bytes that are reserved when no free block fits."""
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
    """Allocates and frees as the caching allocator would in a pool of its own."""

    def __init__(self, base: int = 0x10_0000_0000) -> None:
        self._next_address = base
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
        """Give a block back and merge it with free neighbours."""
        block.used, block.requested = False, 0
        free = self._free.setdefault((block.stream, block.small), [])
        for neighbour in (block.next, block.previous):
            if neighbour is None or neighbour.used:
                continue
            free.remove((neighbour.bytes, neighbour.address))
            first, second = (block, neighbour) if neighbour is block.next else (neighbour, block)
            first.bytes += second.bytes
            first.next = second.next
            if second.next is not None:
                second.next.previous = first
            del self._blocks[second.address]
            block = first
        insort(free, (block.bytes, block.address))

    def blocks(self, segment: PoolBlock) -> list[PoolBlock]:
        """The blocks of a segment, in order of address."""
        found = []
        block: PoolBlock | None = segment
        while block is not None:
            found.append(block)
            block = block.next
        return found
