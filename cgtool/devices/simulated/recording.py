"""The record of a capture that a script makes, and which of its tensors the script still owns."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Generator  # the class itself: a script sees torch.Generator replaced
from torch.multiprocessing.reductions import StorageWeakRef

from cgtool.devices.simulated.graph import CaptureRecorder, RandomStates
from cgtool.devices.simulated.memory import PoolBlock, PrivatePool
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.findings.registry import code
from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import written_by
from cgtool.observe.ops import OpCall
from cgtool.observe.storage import storage_of
from cgtool.torch_compat.private import generator_key, pytree, storage_key, storage_use_count

RNG_UNREGISTERED_GENERATOR = code("rng-unregistered-generator")


def _wrapper_counts() -> int:
    """1 where PyTorch counts the Python object of a storage as an owner, else 0."""
    tensor = torch.empty(1)
    return int(storage_use_count(storage_key(tensor.untyped_storage()))) - 1


class Owners:
    """How many owners of each storage belong to the record; the rest belong to the script."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self._wrapper = _wrapper_counts()

    def hold(self, value: Any, change: int = 1) -> None:
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                storage = storage_of(leaf)
                if storage is not None:
                    key = storage_key(storage)
                    self.counts[key] = self.counts.get(key, 0) + change

    def dead(self, ref: StorageWeakRef) -> bool:
        """True when only records own the storage."""
        if ref.expired():
            return True
        # Every storage that was inspected has a Python object.
        own = self.counts.get(ref.cdata, 0) + self._wrapper
        return int(storage_use_count(ref.cdata)) <= own


class Places:
    """Addresses of the captures' allocations, by the model of the caching allocator."""

    def __init__(self, owners: Owners) -> None:
        self.owners = owners
        self.address: dict[int, int] = {}
        """By storage."""
        self._live: dict[int, tuple[StorageWeakRef, PrivatePool, PoolBlock]] = {}

    def allocate(self, storage: torch.UntypedStorage, pool: PrivatePool) -> None:
        key = storage_key(storage)
        if key in self._live or storage.nbytes() == 0:
            return
        block = pool.allocate(storage.nbytes())
        self.address[key] = block.address
        self._live[key] = (StorageWeakRef(storage), pool, block)

    def sweep(self) -> None:
        """Free the storages that the script no longer owns."""
        for key, (ref, pool, block) in list(self._live.items()):
            if self.owners.dead(ref):
                pool.free(block)
                del self._live[key]


class ScriptRecorder(CaptureRecorder):
    """Records a capture that the script makes. Its effects on other memory are undone at the end,
    because a capture on a GPU computes nothing."""

    def __init__(
        self,
        annotations: Annotations,
        device: ScriptDevice,
        owners: Owners,
        places: Places,
        pool: PrivatePool,
        generators: set[int],
    ) -> None:
        super().__init__({}, annotations, device, RandomStates())
        self.script = device
        self.owners, self.places = owners, places
        self.generators = generators
        """Registered with the graph."""
        self.pool = pool
        self.fresh: set[int] = set()
        """Storages made in this capture."""
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._drawn = torch.get_rng_state()
        self._home = threading.get_ident()
        self.modules.__enter__()

    def stop(self) -> None:
        """End of the capture: undo its effects."""
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
            if storage is None or storage_key(storage) in self.fresh:
                continue
            if storage_key(storage) not in self._before:
                self._before[storage_key(storage)] = (storage, storage.clone())
        given = {_key(leaf) for leaf in pytree.tree_leaves((args, kwargs))}
        steps = len(self.graph.steps)
        output = super().execute(call, func, args, kwargs)
        for step in self.graph.steps[steps:]:
            self.owners.hold((step.args, step.kwargs, step.results))
        if not device.on_host:
            for leaf in pytree.tree_leaves(output):
                if isinstance(leaf, torch.Tensor) and _key(leaf) not in given:
                    storage = storage_of(leaf)
                    if storage is not None and storage_key(storage) not in self.fresh:
                        self.fresh.add(storage_key(storage))
                        self.places.allocate(storage, self.pool)
            self.places.sweep()
        device.captured(call, func, args, kwargs, output)
        return output

    def _generators(self, call: OpCall, args: Any, kwargs: Any) -> None:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Generator):
                # Ops get a new Python object, of the base class, for the same generator.
                if generator_key(leaf) in (
                    *self.generators,
                    generator_key(torch.default_generator),
                ):
                    continue
                device = self.script
                device.call, device.record = call, self.record
                try:
                    device.report(
                        RNG_UNREGISTERED_GENERATOR,
                        "a generator that is not registered with the graph draws random numbers "
                        "in it",
                    )
                finally:
                    device.call = None


def _key(value: Any) -> int | None:
    storage = storage_of(value) if isinstance(value, torch.Tensor) else None
    return None if storage is None else int(storage_key(storage))
