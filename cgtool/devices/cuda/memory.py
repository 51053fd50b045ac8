"""The allocator's side of a capture: its own trace of events and its snapshot at the end.

Both come from PyTorch. Tracebacks are off: they cost more than the allocations, and autograd's
threads have none. The op behind an allocation follows from the clock instead: an op allocates and
then launches, so an allocation belongs to the first node that was created after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from cgtool.model.capture import Allocation, Block, Pool, Segment
from cgtool.torch_compat.private import (
    MissingPrivateName,
    clear_cublas_workspaces,
    memory_snapshot,
    record_memory_history,
)

_MAX_EVENTS = 20_000_000
_GRAIN = 512
"""The allocator rounds every request up to this many bytes (CUDACachingAllocator.cpp)."""


@dataclass
class Window:
    """One capture, on the system clock."""

    graph: int
    start_ns: int
    end_ns: int


@dataclass
class Trace:
    """The allocator's events and final state."""

    pools: tuple[Pool, ...] = ()
    others: tuple[Segment, ...] = ()
    """Segments outside the graphs' pools."""
    allocations: list[Allocation] = field(default_factory=list)
    event_times_ns: list[int] = field(default_factory=list)
    """Time of each allocator event in the graphs' pools."""
    problem: str | None = None


def start(device: int) -> None:
    """Start recording the allocator's events; earlier records are dropped."""
    if keeps_history():
        record_memory_history(
            enabled="all", context=None, max_entries=_MAX_EVENTS, device=device, clear_history=True
        )


def stop(device: int) -> None:
    if keeps_history():
        record_memory_history(enabled=None, device=device)


def keeps_history() -> bool:
    """False for ``backend:cudaMallocAsync``, whose pools are managed by the driver."""
    return bool(torch.cuda.memory.get_allocator_backend() == "native")


def segments(device: int) -> list[dict[str, Any]]:
    """The allocator's segments on one device."""
    if not keeps_history():
        return []
    return [segment for segment in torch.cuda.memory_snapshot() if segment["device"] == device]


def _blocks(raw: dict[str, Any]) -> tuple[Block, ...]:
    # Sizes say where blocks begin on every release; the key "address" is newer.
    blocks = []
    address = raw["address"]
    for block in raw["blocks"]:
        blocks.append(Block(address, block["size"], block.get("requested_size", 0), block["state"]))
        address += block["size"]
    return tuple(blocks)


def _segment(raw: dict[str, Any], streams: dict[int, int]) -> Segment:
    return Segment(
        address=raw["address"],
        bytes=raw["total_size"],
        stream=streams.get(raw["stream"]),
        size_class=raw["segment_type"],
        blocks=_blocks(raw),
        expandable=bool(raw.get("is_expandable", False)),
    )


def read(
    device: int,
    pool_ids: Sequence[tuple[int, int]],
    pool_names: Sequence[str],
    windows: Sequence[Window],
    streams: dict[int, int],
) -> Trace:
    """Snapshot and trace of the graphs' pools. ``streams`` maps handles to stream indices."""
    if not keeps_history():
        return Trace(problem="the allocator is cudaMallocAsync, whose pools PyTorch cannot list")
    snapshot = memory_snapshot()
    raw_segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
    by_pool: dict[tuple[int, int], list[Segment]] = {(key[0], key[1]): [] for key in pool_ids}
    others: list[Segment] = []
    for raw in raw_segments:
        key = tuple(raw.get("segment_pool_id", (0, 0)))
        by_pool.get(key, others).append(_segment(raw, streams))
    pools = tuple(
        Pool(key, name, tuple(sorted(by_pool[key], key=lambda segment: segment.address)))
        for key, name in zip(by_pool, pool_names, strict=True)
    )
    trace = Trace(pools=pools, others=tuple(others))
    traces = snapshot.get("device_traces") or []
    if device >= len(traces) or not windows:
        trace.problem = "the allocator kept no trace of its events"
        return trace
    _follow(trace, traces[device], windows, streams)
    return trace


def _follow(
    trace: Trace,
    events: Sequence[dict[str, Any]],
    windows: Sequence[Window],
    streams: dict[int, int],
) -> None:
    ranges = sorted(
        (segment.address, segment.address + segment.bytes, index)
        for index, pool in enumerate(trace.pools)
        for segment in pool.segments
    )
    starts = [low for low, _, _ in ranges]
    live_bytes = {
        block.address: block.bytes
        for pool in trace.pools
        for segment in pool.segments
        for block in segment.blocks
        if block.state != "inactive"
    }
    window_starts = [window.start_ns // 1000 for window in windows]
    open_at: dict[int, int] = {}
    for event in events:
        action, address = event["action"], event["addr"]
        if action not in ("alloc", "free_completed"):
            continue
        place = bisect_right(starts, address) - 1
        if place < 0 or address >= ranges[place][1]:
            continue
        window_index = bisect_right(window_starts, event["time_us"]) - 1
        position = len(trace.event_times_ns)
        if action == "alloc":
            if window_index < 0:
                continue
            requested = event["size"]
            open_at[address] = len(trace.allocations)
            trace.allocations.append(
                Allocation(
                    address=address,
                    bytes=max(_GRAIN, -(-requested // _GRAIN) * _GRAIN),
                    requested_bytes=requested,
                    pool=ranges[place][2],
                    graph=windows[window_index].graph,
                    allocated_at=position,
                    stream=streams.get(event["stream"]),
                )
            )
        else:
            index = open_at.pop(address, None)
            if index is None:
                continue
            trace.allocations[index] = _with(trace.allocations[index], freed_at=position)
        trace.event_times_ns.append(event["time_us"] * 1000)
    for address, index in open_at.items():
        # The snapshot has the size of a live block, which can be larger than the request: the
        # allocator does not split off a small rest of a large block.
        size = live_bytes.get(address)
        if size is not None:
            trace.allocations[index] = _with(trace.allocations[index], bytes=size)


def _with(allocation: Allocation, **changes: Any) -> Allocation:
    return msgspec.structs.replace(allocation, **changes)


def moments(trace: Trace, node_times_ns: Sequence[int]) -> list[int]:
    """For each node, how many allocator events came before it was created."""
    times = trace.event_times_ns
    return [bisect_right(times, time_ns) for time_ns in node_times_ns]


def owners(trace: Trace, graph: int, node_times_ns: Sequence[int], end_ns: int) -> dict[int, int]:
    """Allocation index to the id of the first node of ``graph`` created after it."""
    owner: dict[int, int] = {}
    for index, allocation in enumerate(trace.allocations):
        if allocation.graph != graph:
            continue
        time_ns = trace.event_times_ns[allocation.allocated_at]
        node = bisect_left(node_times_ns, time_ns)
        if node < len(node_times_ns) and time_ns <= end_ns:
            owner[index] = node
    return owner


def cublas_workspaces(device: int, pool_ids: Sequence[tuple[int, int]]) -> set[int]:
    """Addresses of blocks in the graphs' pools that cuBLAS holds as workspace.

    They are held before ``_cuda_clearCublasWorkspaces`` and free after it, which nothing else is.
    The graphs cannot be replayed afterwards, so this comes last.
    """
    if not keeps_history():
        return set()
    held = _held(device, pool_ids)
    try:
        clear_cublas_workspaces()
    except MissingPrivateName:
        return set()
    return held - _held(device, pool_ids)


def _held(device: int, pool_ids: Sequence[tuple[int, int]]) -> set[int]:
    """Addresses of blocks in use. A block whose free is pending on a stream (``record_stream``) is
    not in use, and the allocator frees it at a time of its own."""
    wanted = {(key[0], key[1]) for key in pool_ids}
    return {
        block.address
        for raw in segments(device)
        if tuple(raw.get("segment_pool_id", (0, 0))) in wanted
        for block in _blocks(raw)
        if block.state == "active_allocated"
    }
