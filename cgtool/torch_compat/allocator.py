"""Queries to PyTorch's allocators, as far as a capture permits them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from cgtool.model.records import PoolSizes

SMALL_REQUEST = 1 << 20
"""The largest request, in bytes, that the caching allocator serves from its small segments
(``kSmallSize``); it serves no larger one from them."""


def lists_memory() -> bool:
    """False for ``backend:cudaMallocAsync``, whose pools are managed by the driver, and for an
    allocator of the user's (``CUDAPluggableAllocator``)."""
    return bool(torch.cuda.memory.get_allocator_backend() == "native")


@functools.cache
def _without_traces() -> dict[str, Any]:
    """The argument that leaves out the traces of a program that records its memory (PyTorch 2.11),
    which may be long."""
    parameters = inspect.signature(torch.cuda.memory_snapshot).parameters
    return {"include_traces": False} if "include_traces" in parameters else {}


def memory_segments(pool: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """``torch.cuda.memory_snapshot()``, of a pool or of all; nothing where that raises."""
    return list(torch.cuda.memory_snapshot(pool, **_without_traces())) if lists_memory() else []


class PoolSegment(NamedTuple):
    """Memory that a pool has reserved for one stream of one device."""

    pool: tuple[int, int]
    device: int
    stream: int
    address: int
    bytes: int
    used_bytes: int


def pool_segments(pool: tuple[int, int]) -> list[PoolSegment]:
    """The segments of a pool."""
    names = "device", "stream", "address", "total_size", "active_size"
    return [
        PoolSegment(pool, *map(segment.__getitem__, names)) for segment in memory_segments(pool)
    ]


@functools.cache
def pins_in_captures() -> bool:
    """Whether a capture may allocate pinned memory (PyTorch 2.11; pull request 167507): since then
    graphs have pools of it, for which ``torch.cuda.graph`` empties the cache of other memory."""
    return "_host_emptyCache" in inspect.getsource(torch.cuda.graphs)


def pool_sizes(segments: Iterable[PoolSegment]) -> tuple[PoolSizes, ...]:
    """Bytes of pools on each device, by stream."""
    sums: dict[tuple[tuple[int, int], int, int], list[int]] = {}
    for segment in segments:
        sizes = sums.setdefault(segment[:3], [0, 0, 0])
        for at, size in enumerate((1, segment.bytes, segment.used_bytes)):
            sizes[at] += size
    return tuple(PoolSizes(*key, *sizes) for key, sizes in sums.items())
