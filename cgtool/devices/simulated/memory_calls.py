"""The memory functions of ``torch.cuda``, answered by the model of the allocator.

Only the pools of graphs are modelled; memory outside captures counts as 0 bytes.
"""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.devices.simulated.memory import PoolBlock, PrivatePool
from cgtool.model.failure import user_code
from cgtool.observe.frames import here
from cgtool.torch_compat.private import DUMP_SNAPSHOT, RECORD_MEMORY_HISTORY, SLEEP, SNAPSHOT


class _Stats(collections.OrderedDict[str, int]):
    """An unknown statistic is 0."""

    def __missing__(self, _name: str) -> int:
        return 0


def _segment(pool_id: tuple[int, int], pool: PrivatePool, first: PoolBlock) -> dict[str, Any]:
    blocks = pool.blocks(first)
    used = [block for block in blocks if block.used]
    allocated = sum(block.bytes for block in used)
    return {
        "device": 0,
        "address": first.address,
        "total_size": sum(block.bytes for block in blocks),
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(block.requested for block in used),
        "stream": first.stream,
        "segment_type": "small" if first.small else "large",
        "segment_pool_id": pool_id,
        "is_expandable": False,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.bytes,
                "requested_size": block.requested,
                "state": "active_allocated" if block.used else "inactive",
                "frames": [],
            }
            for block in blocks
        ],
    }


def _refused(name: str) -> Callable[..., Any]:
    def call(*_args: Any, **_kwargs: Any) -> Any:
        raise user_code(
            f"torch.cuda.{name} has no counterpart on the simulated device",
            frames=here(2),
            fix="run it on a machine with a GPU",
        )

    return call


def memory_calls(device: DeviceModel) -> dict[str, Any]:
    """Replacements by their names in ``torch.cuda`` and ``torch.cuda.memory``."""

    def answers(value: Any) -> Callable[..., Any]:
        return lambda *_args, **_kwargs: value

    def memory_snapshot(mempool_id: Any = None, *_args: Any, **_kwargs: Any) -> list[Any]:
        pools: dict[tuple[int, int], PrivatePool] = getattr(device, "pools", {})
        return [
            _segment(pool_id, pool, first)
            for pool_id, pool in pools.items()
            if mempool_id is None or tuple(mempool_id) == pool_id
            for first in pool.segments
        ]

    def snapshot(*_args: Any, **_kwargs: Any) -> dict[str, Any]:
        return {"segments": memory_snapshot(), "device_traces": [[]], "allocator_settings": {}}

    def dump(filename: str = "dump_snapshot.pickle", *_args: Any, **_kwargs: Any) -> None:
        Path(filename).write_bytes(pickle.dumps(snapshot()))

    def sums() -> tuple[int, int]:
        segments = memory_snapshot()
        return (
            sum(segment["allocated_size"] for segment in segments),
            sum(segment["total_size"] for segment in segments),
        )

    def memory_stats(*_args: Any, **_kwargs: Any) -> _Stats:
        allocated, reserved = sums()
        stats = _Stats()
        for name, value in (("allocated_bytes", allocated), ("reserved_bytes", reserved)):
            for which in ("current", "peak"):
                stats[f"{name}.all.{which}"] = value
        return stats

    def memory_summary(*_args: Any, **_kwargs: Any) -> str:
        allocated, reserved = sums()
        return f"simulated device: pools of graphs {allocated} bytes allocated, {reserved} reserved"

    return {
        "memory_snapshot": memory_snapshot,
        SNAPSHOT.name: snapshot,
        DUMP_SNAPSHOT.name: dump,
        RECORD_MEMORY_HISTORY.name: answers(None),
        "memory_stats": memory_stats,
        "memory_summary": memory_summary,
        "host_memory_stats": answers(_Stats()),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated"), lambda *_: sums()[0]),
        **dict.fromkeys(
            ("memory_reserved", "max_memory_reserved", "memory_cached", "max_memory_cached"),
            lambda *_: sums()[1],
        ),
        "reset_peak_memory_stats": answers(None),
        "reset_accumulated_memory_stats": answers(None),
        "reset_max_memory_allocated": answers(None),
        "reset_max_memory_cached": answers(None),
        "reset_peak_host_memory_stats": answers(None),
        "reset_accumulated_host_memory_stats": answers(None),
        "set_per_process_memory_fraction": answers(None),
        "get_per_process_memory_fraction": answers(1.0),
        "get_allocator_backend": answers("native"),
        "ipc_collect": answers(None),
        "can_device_access_peer": answers(False),
        "set_sync_debug_mode": answers(None),
        "get_sync_debug_mode": answers(0),
        "memory_usage": answers(0),
        "utilization": answers(0),
        SLEEP.name: answers(None),
        # A class, so that annotations can name it.
        "MemPool": type("MemPool", (), {"__init__": _refused("MemPool")}),
        **{
            name: _refused(name)
            for name in (
                "memory_stats_as_nested_dict", "caching_allocator_alloc", "use_mem_pool",
                "caching_allocator_delete", "current_blas_handle", "get_stream_from_external",
                "change_current_allocator", "cudart",
            )
        },
    }  # fmt: skip
