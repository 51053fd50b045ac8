"""What PyTorch's bindings of CUDA return on the simulated device.

The functions of ``torch.cuda`` and ``torch.accelerator`` are PyTorch's own: they parse their
arguments, and call functions in C++ (``torch._C._cuda_getDevice``), which are replaced by those of
this file. Of memory, only the pools of graphs are modeled; what is outside captures counts as 0
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from cgtool.devices.simulated import collectives
from cgtool.devices.simulated.device_model import COUNT, INDEX, DeviceModel, Stream
from cgtool.devices.simulated.memory import PoolBlock, PrivatePool
from cgtool.model.failure import user_code
from cgtool.observe.frames import here


class _Properties:
    """The result of ``torch.cuda.get_device_properties``: an H200, the GPU that is modeled."""

    name = "simulated"
    major, minor = 9, 0
    total_memory = 141 << 30
    multi_processor_count = 132
    max_threads_per_multi_processor = 2048
    max_threads_per_block = 1024
    regs_per_multiprocessor = 65536
    shared_memory_per_block = 48 << 10
    shared_memory_per_block_optin = 227 << 10
    shared_memory_per_multiprocessor = 228 << 10
    warp_size = 32
    is_integrated = is_multi_gpu_board = 0


_FREE_AND_TOTAL = (_Properties.total_memory, _Properties.total_memory)
_ANSWERS = {
    **dict.fromkeys(("getDevice", "exchangeDevice", "maybeExchangeDevice"), INDEX),
    **dict.fromkeys(
        (
            "init", "setDevice", "ipc_collect", "sleep", "emptyCache", "setMemoryFraction",
            "resetAccumulatedMemoryStats", "resetPeakMemoryStats", "record_memory_history",
            "resetAccumulatedHostMemoryStats", "resetPeakHostMemoryStats", "setMemoryMetadata",
            "record_memory_history_legacy", "beginAllocateToPool", "endAllocateToPool",
            "beginAllocateCurrentThreadToPool", "releasePool", "cudaCachingAllocator_enable",
            "clearCublasWorkspaces", "customAllocator", "changeCurrentAllocator", "getAllocator",
        )
    ),
    **dict.fromkeys(("getCurrentBlasHandle", "getCurrentSolverHandle"), 1),
    "getDeviceCount": COUNT,
    "getArchFlags": f"sm_{_Properties.major}{_Properties.minor}",
    "canDeviceAccessPeer": False,
    "getAllocatorBackend": "native",
    "getMemoryFraction": 1.0,
    "getMemoryMetadata": "",
    "cudaCachingAllocator_is_enabled": True,
}  # fmt: skip
_ACCELERATOR_ANSWERS = {
    **dict.fromkeys(("getDeviceIndex", "exchangeDevice", "maybeExchangeDevice"), INDEX),
    **dict.fromkeys(
        (
            "setDeviceIndex", "emptyCache", "emptyHostCache", "resetAccumulatedStats",
            "resetPeakStats", "setAllocatorSettings",
        )
    ),
    "getAccelerator": torch.device("cuda"),
    "isAllocatorInitialized": True,
    "getMemoryInfo": _FREE_AND_TOTAL,
    "getDeviceCapability": {
        "supported_dtypes": {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    },
}  # fmt: skip
_OTHER_ANSWERS = {
    "host_emptyCache": None,
    # Of NCCL 2.28.9, which PyTorch's wrappers of collectives log with an error.
    "nccl_version": 2 << 32 | 28 << 16 | 9,
    "nccl_version_suffix": b"",
}
_NVML_QUERIES = (
    "device_memory_used", "memory_usage", "utilization", "temperature", "power_draw", "clock_rate",
)  # fmt: skip
"""Functions of ``torch.cuda`` that read a driver's counters, without bindings."""


def _answers(values: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
    """A separate function for each name, because Dynamo looks up its rules by function."""

    def answer(value: Any) -> Callable[..., Any]:
        return lambda *_args, **_kwargs: value

    return {name: answer(value) for name, value in values.items()}


def _unsupported(name: str, fix: str, why: str = "") -> Callable[..., Any]:
    def call(*_args: Any, **_kwargs: Any) -> Any:
        raise user_code(
            f"{name} has no counterpart on the simulated device",
            frames=here(2),
            why=why,
            fix=fix,
        )

    return call


def _no_graphs(name: str) -> Callable[..., Any]:
    return _unsupported(
        f"torch.cuda.{name}",
        "return the callable uncaptured, or run on a machine with a GPU",
        "cgtool itself captures what the entry point returns",
    )


def _graph_class(name: str) -> type:
    """A class that cannot be instantiated: ``torch.cuda.CUDAGraph | None`` can be an annotation."""
    return type(name, (), {"__init__": _no_graphs(name)})


def cuda_calls(device: DeviceModel) -> dict[str, Any]:
    """Replacements by their names in ``torch.cuda`` and its modules: classes, and what has no
    bindings."""
    return {
        "Stream": device.stream_class,
        "ExternalStream": device.external_stream_class,
        "Event": device.event_class,
        "MemPool": type("MemPool", (_MemPool,), {"device": device}),
        **{name: _graph_class(name) for name in ("CUDAGraph", "graph")},
        "make_graphed_callables": _no_graphs("make_graphed_callables"),
        "default_generators": (device.generator,) * COUNT,
        **_answers(dict.fromkeys(_NVML_QUERIES, 0)),
    }


def cuda_bindings(device: DeviceModel) -> dict[str, Callable[..., Any]]:
    """By their names in ``torch._C``, without ``_cuda_``."""

    def ids(stream: Stream) -> tuple[int, int, int]:
        return stream.stream_id, stream.device_index, stream.device_type

    def set_stream(*, stream_id: int, **_ids: int) -> None:
        device.current = device.stream_by_id(stream_id)

    def allocate(size: int, _stream: int) -> int:
        memory = torch.UntypedStorage(size)
        allocated[memory.data_ptr()] = memory
        return memory.data_ptr()

    allocated: dict[int, torch.UntypedStorage] = {}

    def is_capturing() -> bool:
        if device.current_is_capturing:
            device.answer_capturing()
        return device.current_is_capturing

    return {
        **_answers(_ANSWERS),
        "getCurrentStream": lambda _index: ids(device.current),
        "getDefaultStream": lambda _index: ids(device.default),
        "getStreamFromExternal": lambda handle, _index: ids(device.stream_of(handle)),
        "getCurrentRawStream": lambda _index: device.current.cuda_stream,
        "setStream": set_stream,
        "synchronize": partial(_synchronize, device, "torch.cuda.synchronize()"),
        "isCurrentStreamCapturing": is_capturing,
        "set_sync_debug_mode": partial(setattr, device, "sync_debug_mode"),
        "get_sync_debug_mode": lambda: device.sync_debug_mode,
        "cudaCachingAllocator_raw_alloc": allocate,
        "cudaCachingAllocator_raw_delete": allocated.pop,
        "memoryStats": lambda _index: _memory_stats(device),
        "hostMemoryStats": _host_memory_stats,
        "memorySnapshot": partial(_snapshot, device),
    }


def accelerator_bindings(device: DeviceModel) -> dict[str, Callable[..., Any]]:
    """By their names in ``torch._C``, without ``_accelerator_``."""
    return {
        **_answers(_ACCELERATOR_ANSWERS),
        "getStream": lambda _index: device.current,
        "setStream": partial(setattr, device, "current"),
        "synchronizeDevice": lambda _index: _synchronize(device, "torch.accelerator.synchronize()"),
        "getDeviceStats": lambda _index: _memory_stats(device),
    }


def others(device: DeviceModel) -> dict[str, Callable[..., Any]]:
    """By their names in ``torch._C``, without an underscore."""
    at_address = "_construct_CUDA_Tensor_From_Storage_And_Metadata"
    return {
        "graph_pool_handle": device.new_pool,
        at_address[1:]: _unsupported(
            f"torch._C.{at_address}()",
            "keep the tensor, or run on a machine with a GPU",
            "it makes a tensor at an address without owning the memory",
        ),
        **_answers(_OTHER_ANSWERS),
    }


def get_properties(_index: int) -> type[_Properties]:
    """The properties of the device with this index."""
    return _Properties


cudart = SimpleNamespace(
    cudaError=type("cudaError", (int,), {"success": 0}),
    cudaGetErrorString="CUDA error {}".format,
    cudaMemGetInfo=lambda _device: _FREE_AND_TOTAL,
    **_answers(dict.fromkeys(("cudaProfilerStart", "cudaProfilerStop"), 0)),
    **{
        name: _unsupported(f"{name}()", "allocate with pin_memory=True")
        for name in ("cudaHostRegister", "cudaHostUnregister")
    },
)
"""``torch.cuda.cudart()``"""


class _MemPool:
    """Replaces ``torch.cuda.MemPool``: the id of a pool, for a graph to allocate from."""

    device: DeviceModel

    def __init__(
        self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        self.allocator = allocator
        self.id = self.device.new_pool()

    def use_count(self) -> int:
        return 1

    def snapshot(self, include_traces: bool = True) -> Any:
        return torch.cuda.memory_snapshot(self.id)


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


def _synchronize(device: DeviceModel, call: str) -> None:
    device.refuse_synchronize(call, in_all_modes=True)
    collectives.synchronize()


def _snapshot(device: DeviceModel, selected: Any = None) -> dict[str, Any]:
    """``selected``: the id of a pool, (0, 0) for all, and whether to include traces."""
    pools: dict[tuple[int, int], PrivatePool] = getattr(device, "pools", {})
    device.memory.sweep()  # what has died since the last op
    wanted = tuple(selected or ())[:2]
    segments = [
        _segment(pool_id, pool, first)
        for pool_id, pool in pools.items()
        if wanted in ((), (0, 0), pool_id)
        for first in pool.segments
    ]
    return {"segments": segments, "device_traces": [[]], "allocator_settings": {}}


_COUNTS = ("current", "peak", "allocated", "freed")


def _memory_stats(device: DeviceModel) -> dict[str, Any]:
    """All that the allocator counts, by name, pool and kind of count."""
    segments = _snapshot(device)["segments"]
    read_from = {
        "allocated_bytes": "allocated_size",
        "active_bytes": "active_size",
        "requested_bytes": "requested_size",
        "reserved_bytes": "total_size",
        **dict.fromkeys(
            ("allocation", "segment", "active", "inactive_split", "inactive_split_bytes")
        ),
    }

    def counts(field: str | None, size: str) -> dict[str, int]:
        of_size = [each for each in segments if size in ("all", each["segment_type"])]
        now = sum(each[field] for each in of_size) if field else 0
        return {"current": now, "peak": now, "allocated": now, "freed": 0}

    pools = {"all": "all", "small_pool": "small", "large_pool": "large"}
    return {
        **{
            name: {pool: counts(field, size) for pool, size in pools.items()}
            for name, field in read_from.items()
        },
        **{f"oversize_{name}": dict.fromkeys(_COUNTS, 0) for name in ("allocations", "segments")},
        **dict.fromkeys(
            (
                "num_alloc_retries", "num_ooms", "max_split_size", "num_sync_all_streams",
                "num_device_alloc", "num_device_free",
            ),
            0,
        ),
    }  # fmt: skip


def _host_memory_stats() -> dict[str, Any]:
    times = ("total", "max", "min", "count", "avg")
    return {
        **{
            name: dict.fromkeys(_COUNTS, 0)
            for name in ("allocations", "allocated_bytes", "active_requests", "active_bytes")
        },
        **{name: dict.fromkeys(times, 0) for name in ("host_alloc_time", "host_free_time")},
        **dict.fromkeys(("num_host_alloc", "num_host_free"), 0),
    }
