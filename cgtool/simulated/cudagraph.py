"""``torch.cuda.CUDAGraph`` of the simulated device, for scripts that capture themselves.

PyTorch's own ``torch.cuda.graph`` and ``torch.cuda.make_graphed_callables`` run on it unchanged.
The order of calls that it demands, and the words in which it refuses another, are those of
aten/src/ATen/cuda/CUDAGraph.cpp.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from cgtool.hazards.collect import here
from cgtool.hazards.watch.cells import storage_of
from cgtool.hazards.watch.effects import written_by
from cgtool.hazards.watch.recorder import caller_of_modes
from cgtool.model.finding import Finding
from cgtool.record.annotations import Annotations
from cgtool.record.ops import OpCall
from cgtool.simulated.allocator import PoolBlock, PrivatePool
from cgtool.simulated.graph import CaptureRecorder, RandomStates, SimulatedGraph
from cgtool.simulated.scripted import PoolId, ScriptDevice
from cgtool.simulated.streams import Stream

_NO_CAPTURE = "Called CUDAGraph::{} without a preceding successful capture."
_use_count = torch._C._storage_Use_Count


def _wrapper_counts() -> int:
    """1 where PyTorch counts the Python object of a storage among its owners, else 0."""
    tensor = torch.empty(1)
    return int(_use_count(tensor.untyped_storage()._cdata)) - 1


class Owners:
    """How many owners of each storage are the record's own: the rest are the user's."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self._wrapper = _wrapper_counts()

    def hold(self, value: Any, change: int = 1) -> None:
        for one in pytree.tree_leaves(value):
            if isinstance(one, torch.Tensor):
                storage = storage_of(one)
                if storage is not None:
                    key = storage._cdata
                    self.counts[key] = self.counts.get(key, 0) + change

    def dead(self, ref: StorageWeakRef) -> bool:
        """True when nothing but records owns the storage."""
        if ref.expired():
            return True
        # Every storage that was looked at has its Python object.
        own = self.counts.get(ref.cdata, 0) + self._wrapper
        return int(_use_count(ref.cdata)) <= own


class Places:
    """Addresses of what captures allocate, by the model of the caching allocator."""

    def __init__(self, owners: Owners) -> None:
        self.owners = owners
        self.address: dict[int, int] = {}
        """By storage."""
        self._live: dict[int, tuple[StorageWeakRef, PrivatePool, PoolBlock]] = {}

    def allocate(self, storage: torch.UntypedStorage, pool: PrivatePool) -> None:
        key = storage._cdata
        if key in self._live or storage.nbytes() == 0:
            return
        block = pool.allocate(storage.nbytes())
        self.address[key] = block.address
        self._live[key] = (StorageWeakRef(storage), pool, block)

    def sweep(self) -> None:
        """Give back what the user has let go."""
        for key, (ref, pool, block) in list(self._live.items()):
            if self.owners.dead(ref):
                pool.free(block)
                del self._live[key]


class ScriptRecorder(CaptureRecorder):
    """Records a capture of the script's own: its effects on other memory are undone at the end,
    because a capture computes nothing."""

    def __init__(
        self, annotations: Annotations, device: ScriptDevice, owner: CUDAGraph, pool: PrivatePool
    ) -> None:
        super().__init__({}, annotations, device, RandomStates())
        self.script = device
        self.owner = owner
        self.pool = pool
        self.fresh: set[int] = set()
        """Storages made in this capture."""
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._drawn = torch.get_rng_state()
        self._home = threading.get_ident()
        self.modules.__enter__()

    def begin(self, func: Any, caller: Any) -> OpCall:
        return super().begin(func, caller_of_modes(caller))

    def stop(self) -> None:
        """The capture is over."""
        self.modules.__exit__(None, None, None)
        self.script.random_state = lambda _what, _state: None
        for storage, before in self._before.values():
            storage.copy_(before)
        torch.set_rng_state(self._drawn)

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        device = self.script
        if device.invalid and not device.on_host:
            raise device.ended()
        if not device.on_host:
            self._generators(call, args, kwargs)
        for tensor in written_by(func, args, kwargs):
            storage = storage_of(tensor)
            if storage is None or storage._cdata in self.fresh:
                continue
            if storage._cdata not in self._before:
                self._before[storage._cdata] = (storage, storage.clone())
        given = {_key(one) for one in pytree.tree_leaves((args, kwargs))}
        steps = len(self.graph.steps)
        made = super().execute(call, func, args, kwargs)
        for step in self.graph.steps[steps:]:
            self.owner.owners.hold((step.args, step.kwargs, step.results))
        if not device.on_host:
            for one in pytree.tree_leaves(made):
                if isinstance(one, torch.Tensor) and _key(one) not in given:
                    storage = storage_of(one)
                    if storage is not None and storage._cdata not in self.fresh:
                        self.fresh.add(storage._cdata)
                        self.owner.places.allocate(storage, self.pool)
            self.owner.places.sweep()
        device.captured(call, func, args, kwargs, made)
        return made

    def _generators(self, call: OpCall, args: Any, kwargs: Any) -> None:
        for one in pytree.tree_leaves((args, kwargs)):
            if isinstance(one, torch._C.Generator):
                # Ops are handed a new Python object for the same generator.
                if one._cdata in (*self.owner.generators, torch.default_generator._cdata):  # type: ignore[attr-defined]
                    continue
                device = self.script
                device.call, device.record = call, self.record
                try:
                    device.report(
                        Finding(
                            "rng-unregistered-generator",
                            "a generator of your own draws numbers in the graph, which does not "
                            "know it",
                            phase=device.phase,
                            fix="call graph.register_generator_state(generator) before the capture",
                        ),
                        why="",
                    )
                finally:
                    device.call = None


def _key(value: Any) -> int | None:
    storage = storage_of(value) if isinstance(value, torch.Tensor) else None
    return None if storage is None else int(storage._cdata)


class CUDAGraph:
    """Stands in for ``torch.cuda.CUDAGraph``."""

    device: ScriptDevice
    owners: Owners
    places: Places
    annotations: Annotations

    def __new__(cls, keep_graph: bool = False) -> CUDAGraph:
        made = super().__new__(cls)
        made.keep_graph = keep_graph
        made._pool = None
        made._stream = None
        made._recorder = None
        made._graph = None
        made._has_exec = False
        made._debug = False
        made.generators = set()
        made._registered = []
        return made

    keep_graph: bool
    _pool: PoolId | None
    _stream: Stream | None
    _recorder: ScriptRecorder | None
    _graph: SimulatedGraph | None
    _has_exec: bool
    _debug: bool
    generators: set[int]
    _registered: list[torch.Generator]

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.add(generator._cdata)  # type: ignore[attr-defined]
        self._registered.append(generator)

    def capture_begin(
        self,
        pool: PoolId | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        device = self.device
        if self._has_exec or self._graph is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance."
            )
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "
                f"{capture_error_mode}"
            )
        if device.current is device.default:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.)"
            )
        if device.capturing:
            # notes/cuda: one capture at a time in a process.
            device.report(
                Finding(
                    "api-order-misuse",
                    "a capture begins while another one is in progress",
                    here(),
                    fix="capture one graph after the other",
                ),
                why="",
            )
        if pool is not None and tuple(pool) not in device.pools:
            device.pools[tuple(pool)] = PrivatePool(0x10_0000_0000 * (len(device.pools) + 1))  # type: ignore[index]
        self._pool = device.new_pool() if pool is None else (int(pool[0]), int(pool[1]))
        self._stream = device.current
        device.begin(device.current, "capture")
        device.invalid = False
        self.places.sweep()
        self._recorder = ScriptRecorder(self.annotations, device, self, device.pools[self._pool])
        device.recorder = self._recorder

    def capture_end(self) -> None:
        device = self.device
        recorder = self._recorder
        if recorder is None or device.current is not self._stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        try:
            if not device.invalid:
                device.look_at_joins()
            if device.invalid:
                raise device.ended()
        finally:
            self._recorder = None
            device.recorder = None
            device.end()
            device.invalid = False
            recorder.stop()
        self._graph = recorder.graph
        self._graph.stream_names = [one.name for one in device.streams]
        if not self._graph.nodes:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream.",
                stacklevel=2,
            )
        if not self.keep_graph:
            self._has_exec = True

    def instantiate(self) -> None:
        if not self.keep_graph:
            raise RuntimeError(
                "instantiate() is intended to be called by the user only when keep_graph=true"
            )
        if self._graph is None:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        self._has_exec = True

    def replay(self) -> None:
        if self._graph is None:
            raise RuntimeError(_NO_CAPTURE.format("replay"))
        self._has_exec = True
        if self.device.current_is_capturing:
            self.device.report(
                Finding(
                    "api-order-misuse",
                    "a graph is replayed while a stream is capturing",
                    here(),
                    fix="replay it outside the capture",
                ),
                why="",
            )
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            self._graph.replay()

    def reset(self) -> None:
        if self._graph is not None:
            for step in self._graph.steps:
                self.owners.hold((step.args, step.kwargs, step.results), -1)
        self._graph = None
        self._has_exec = False

    def pool(self) -> PoolId:
        if self._pool is None or self._graph is None:
            raise RuntimeError(_NO_CAPTURE.format("pool()"))
        return self._pool

    def enable_debug_mode(self) -> None:
        self._debug = True

    def debug_dump(self, debug_path: str) -> None:
        if not self._debug:
            raise RuntimeError(
                "CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()"
            )
        raise self._no_handle()

    def raw_cuda_graph(self) -> int:
        if not self.keep_graph:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized "
                "with keep_graph=true"
            )
        if self._graph is None:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance until capture_end() has been called"
            )
        raise self._no_handle()

    def raw_cuda_graph_exec(self) -> int:
        if not self._has_exec:
            raise RuntimeError(
                "You cannot access the raw cudaGraphExec_t instance until instantiate() has been "
                "called"
            )
        raise self._no_handle()

    def get_graph_data(self) -> dict[str, Any]:
        raise self._no_handle()

    def __del__(self) -> None:
        self.reset()

    @staticmethod
    def _no_handle() -> Exception:
        from cgtool.model.failure import user_code

        return user_code(
            "the script asks for the driver's own handle of a graph, which the simulated device "
            "does not have",
            frames=here(2),
            fix="run it on a machine with a GPU",
        )

    @property
    def nodes(self) -> int:
        """How many ops the graph would launch."""
        return 0 if self._graph is None else len(self._graph.nodes)
