"""When storages are allocated and freed, seen from outside: an op record that holds nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from cgtool.detectors.rules import host_work
from cgtool.devices.simulated.streams import Device
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.observe.storage import strided_parts


@dataclass(slots=True)
class Life:
    """One storage that an op made."""

    call: OpCall
    graph: int
    bytes: int
    stream: str
    """Name of the stream that it was allocated on."""
    born: int
    """Position in the sequence of allocations and frees, from 0."""
    died: int | None = None
    address: int = 0
    """Of the CPU storage: tells which life an output belongs to."""


class LifetimeRecorder(OpRecorder):
    """Follows every storage that ops make until nobody holds it."""

    def __init__(self, roots: Any, annotations: Any, device: Device) -> None:
        super().__init__(roots, annotations)
        self.device = device
        self.lives: list[Life] = []
        self.graph = 0
        self.events = 0
        self._open: dict[int, tuple[StorageWeakRef, Life]] = {}

    def sweep(self) -> None:
        """Note which storages died since the last call."""
        dead = [key for key, (reference, _) in self._open.items() if reference.expired()]
        for key in dead:
            _, life = self._open.pop(key)
            life.died = self.events
            self.events += 1

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.device.on_host or host_work(args):
            return func(*args, **kwargs)
        self.sweep()
        current = self.device.current
        # What runs on the default stream now is captured on the capturing stream.
        stream = "capture stream" if current is self.device.default else current.name
        before = {one._cdata for one in _storages((args, kwargs))}
        made = func(*args, **kwargs)
        for storage in _storages(made):
            key = storage._cdata
            if key in before or key in self._open or storage.nbytes() == 0:
                continue
            life = Life(
                call,
                self.graph,
                storage.nbytes(),
                stream,
                self.events,
                address=storage.data_ptr(),
            )
            self.events += 1
            self.lives.append(life)
            self._open[key] = (StorageWeakRef(storage), life)
        return made


def _storages(value: Any) -> Iterator[torch.UntypedStorage]:
    """Of all tensors in ``value``, also of those that are made of others (sparse, jagged)."""
    for one in pytree.tree_leaves(value):
        if isinstance(one, torch.Tensor):
            yield from (part.untyped_storage() for _, part in strided_parts(one))
