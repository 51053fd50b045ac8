"""What ``torch.cuda`` and ``torch.accelerator`` return on the simulated device.

Of memory, only the pools of graphs are modeled; what is outside captures counts as 0 bytes.
"""

from __future__ import annotations

import collections
import contextlib
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from cgtool.detectors.generator_states import sets_other_seed
from cgtool.devices.simulated.device_model import DeviceModel, Stream
from cgtool.devices.simulated.memory import PoolBlock, PrivatePool
from cgtool.findings import code
from cgtool.model.failure import user_code
from cgtool.observe.frames import here
from cgtool.torch_compat import private

RNG_STATE_ACCESS = code("rng-state-access")


class _Properties:
    """The result of ``torch.cuda.get_device_properties``: an H200, the GPU that is modeled."""

    name = "simulated"
    major, minor = 9, 0
    total_memory = 141 << 30
    multi_processor_count = 132
    max_threads_per_multi_processor = 2048
    warp_size = 32


_ANSWERS = {
    **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), True),
    **dict.fromkeys(("init", private.LAZY_INIT.name, "set_device"), None),
    "device_count": 1,
    "current_device": 0,
    "get_device_name": _Properties.name,
    "get_device_capability": (_Properties.major, _Properties.minor),
    "get_device_properties": _Properties(),
}
_MEMORY_ANSWERS = {
    **dict.fromkeys(
        (
            "empty_cache", "ipc_collect", "set_per_process_memory_fraction", "set_sync_debug_mode",
            "reset_peak_memory_stats", "reset_accumulated_memory_stats",
            "reset_max_memory_allocated", "reset_max_memory_cached", "reset_peak_host_memory_stats",
            "reset_accumulated_host_memory_stats", private.RECORD_MEMORY_HISTORY.name,
            private.SLEEP.name,
        )
    ),
    **dict.fromkeys(("get_sync_debug_mode", "memory_usage", "utilization"), 0),
    "can_device_access_peer": False,
    "get_allocator_backend": "native",
    "get_per_process_memory_fraction": 1.0,
}  # fmt: skip
_UNSUPPORTED = (
    "memory_stats_as_nested_dict", "caching_allocator_alloc", "use_mem_pool",
    "caching_allocator_delete", "current_blas_handle", "get_stream_from_external",
    "change_current_allocator", "cudart",
)  # fmt: skip


def _answers(values: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
    """A separate function for each name, because Dynamo looks up its rules by function."""

    def answer(value: Any) -> Callable[..., Any]:
        return lambda *_args, **_kwargs: value

    return {name: answer(value) for name, value in values.items()}


class _Guard(contextlib.nullcontext[None]):
    """``torch.cuda.device(0)``: there is only one device."""

    def __init__(self, _device: Any) -> None:
        super().__init__()


def _unsupported(name: str, fix: str, why: str = "") -> Callable[..., Any]:
    def call(*_args: Any, **_kwargs: Any) -> Any:
        raise user_code(
            f"torch.cuda.{name} has no counterpart on the simulated device",
            frames=here(2),
            why=why,
            fix=fix,
        )

    return call


def _no_graphs(name: str) -> Callable[..., Any]:
    return _unsupported(
        name,
        "return the callable uncaptured, or run on a machine with a GPU",
        "cgtool itself captures what the entry point returns",
    )


def _class(name: str, init: Callable[..., Any]) -> type:
    """A class that cannot be instantiated: ``torch.cuda.CUDAGraph | None`` can be an annotation."""
    return type(name, (), {"__init__": init})


def cuda_calls(device: DeviceModel) -> dict[str, Any]:
    """Replacements by their names in ``torch.cuda``."""

    def enter(stream: Stream | None) -> Any:
        return stream if stream is not None else contextlib.nullcontext()

    def reseeds(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if not args or sets_other_seed(*args):
                device.refuse(
                    RNG_STATE_ACCESS,
                    f"torch.cuda.{name}()",
                    why=(
                        "the generator belongs to the graph while it is captured: PyTorch "
                        "refuses to seed it again"
                    ),
                    fix="seed before the replay, not in the captured code",
                )
            return getattr(torch.default_generator, name.removesuffix("_all"))(*args)

        return call

    def get_state(*_: Any) -> torch.Tensor:
        state = torch.get_rng_state()
        if device.capturing:
            device.random_state("saved", state)
        return state

    def set_state(state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)
        if device.capturing:
            device.random_state("restored", state)

    return _answers(_ANSWERS) | {
        private.INITIALIZED.name: True,
        "device": _Guard,
        "device_of": _Guard,
        "synchronize": _synchronize(device, "torch.cuda"),
        "current_stream": lambda *_: device.current,
        "default_stream": lambda *_: device.default,
        "stream": enter,
        "set_stream": _set_stream(device),
        "Stream": device.stream_class,
        "ExternalStream": device.stream_of,
        "Event": device.event_class,
        **{name: reseeds(name) for name in ("manual_seed", "manual_seed_all", "seed")},
        "initial_seed": torch.default_generator.initial_seed,
        "get_rng_state": get_state,
        "set_rng_state": set_state,
        **{name: _class(name, _no_graphs(name)) for name in ("CUDAGraph", "graph")},
        "make_graphed_callables": _no_graphs("make_graphed_callables"),
    }


def accelerator_calls(device: DeviceModel) -> dict[str, Any]:
    """Replacements by their names in ``torch.accelerator``."""
    return _answers(
        {
            "is_available": True,
            "device_count": 1,
            "current_accelerator": torch.device("cuda"),
            "current_device_index": 0,
        }
    ) | {
        "current_stream": lambda *_: device.current,
        "set_stream": _set_stream(device),
        "synchronize": _synchronize(device, "torch.accelerator"),
    }


def _synchronize(device: DeviceModel, module: str) -> Callable[..., None]:
    return lambda *_: device.refuse_synchronize(f"{module}.synchronize()", in_all_modes=True)


def _set_stream(device: DeviceModel) -> Callable[[Stream], None]:
    def set_stream(stream: Stream) -> None:
        device.current = stream

    return set_stream


class _Stats(collections.OrderedDict[str, int]):
    """Statistics; an unknown one is 0."""

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


def memory_calls(device: DeviceModel) -> dict[str, Any]:
    """Replacements by their names in ``torch.cuda`` and ``torch.cuda.memory``."""

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

    # By these names `observe.iteration` knows what returns another number each time.
    def memory_allocated(*_args: Any) -> int:
        return sum(segment["allocated_size"] for segment in memory_snapshot())

    def memory_reserved(*_args: Any) -> int:
        return sum(segment["total_size"] for segment in memory_snapshot())

    def mem_get_info(*_args: Any) -> tuple[int, int]:
        return _Properties.total_memory, _Properties.total_memory

    def memory_stats(*_args: Any, **_kwargs: Any) -> _Stats:
        stats = _Stats()
        for name, value in (
            ("allocated_bytes", memory_allocated()),
            ("reserved_bytes", memory_reserved()),
        ):
            for which in ("current", "peak"):
                stats[f"{name}.all.{which}"] = value
        return stats

    def memory_summary(*_args: Any, **_kwargs: Any) -> str:
        return (
            f"simulated device: pools of graphs {memory_allocated()} bytes allocated, "
            f"{memory_reserved()} reserved"
        )

    return (
        _answers(_MEMORY_ANSWERS | {"host_memory_stats": _Stats()})
        | {name: _unsupported(name, "run it on a machine with a GPU") for name in _UNSUPPORTED}
        | dict.fromkeys(("memory_allocated", "max_memory_allocated"), memory_allocated)
        | dict.fromkeys(
            ("memory_reserved", "max_memory_reserved", "memory_cached", "max_memory_cached"),
            memory_reserved,
        )
        | {
            "mem_get_info": mem_get_info,
            "memory_snapshot": memory_snapshot,
            private.SNAPSHOT.name: snapshot,
            private.DUMP_SNAPSHOT.name: dump,
            "memory_stats": memory_stats,
            "memory_summary": memory_summary,
            "MemPool": _class("MemPool", _unsupported("MemPool", "run it on a machine with a GPU")),
        }
    )
