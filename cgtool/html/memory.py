"""The memory of a capture as the page draws it: each block at its place in its pool, from its
allocation to its end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from cgtool.analysis.pools import UNNAMED_HOLDER, pool_rows
from cgtool.html.packing import Interned, Packer
from cgtool.model.capture import Allocation, Capture, Pool


def pack_memory(capture: Capture, prefix: str, packer: Packer) -> dict[str, Any]:
    """The tree of the pools; blocks become columns."""
    memory = capture.memory
    blocks, labels = memory.allocations, Interned()
    maps = [_PoolMap(pool) for pool in memory.pools]
    columns: dict[str, Sequence[int | None]] = {
        "pool": [block.pool for block in blocks],
        "at": [maps[block.pool].place(block) for block in blocks],
        "bytes": [block.bytes for block in blocks],
        "requested": [block.requested_bytes for block in blocks],
        "graph": [block.graph for block in blocks],
        "stream": [block.stream for block in blocks],
        "origin": [block.origin for block in blocks],
        "node": [block.node for block in blocks],
        "label": [labels.index(_holder(block)) for block in blocks],
    }
    for name, values in columns.items():
        packer.integers(f"{prefix}block/{name}", values)
    packer.integers(f"{prefix}block/from", [block.allocated_at for block in blocks], rising=True)
    packer.integers(f"{prefix}block/to", [block.freed_at for block in blocks])
    return {
        "blockLabels": labels.values,
        "pools": [
            {
                "name": row.name,
                "reserved": row.reserved,
                "live": row.live,
                "peak": row.peak,
                "floor": row.floor,
                "untouched": row.untouched,
                "peakAt": row.peak_at,
                "segments": pool_map.segments,
            }
            for row, pool_map in zip(pool_rows(capture), maps, strict=True)
        ],
    }


def _holder(block: Allocation) -> str:
    return block.label or (UNNAMED_HOLDER if block.freed_at is None else "")


class _PoolMap:
    """The segments of a pool, by address, without the gaps between them."""

    def __init__(self, pool: Pool) -> None:
        ordered = sorted(pool.segments, key=lambda segment: segment.address)
        ends = [0, *accumulate(segment.bytes for segment in ordered)]
        self._addresses = [segment.address for segment in ordered]
        self.segments: list[tuple[int, int, str, int]] = [
            (
                at,
                segment.bytes,
                segment.size_class,
                -1 if segment.stream is None else segment.stream,
            )
            for at, segment in zip(ends, ordered, strict=False)
        ]
        """Offset, bytes, size class and stream."""

    def place(self, block: Allocation) -> int | None:
        """Its offset in the pool; None if it is in no segment: that was given back."""
        number = bisect_right(self._addresses, block.address) - 1
        if number < 0:
            return None
        at, size, *_ = self.segments[number]
        inside = block.address - self._addresses[number]
        return at + inside if inside < size else None
