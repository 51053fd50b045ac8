"""Memory as the watcher knows it: one ``Cell`` a storage that a graph touches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from cgtool.model.capture import Frame
from cgtool.observe.frames import Site

if TYPE_CHECKING:
    from cgtool.detectors.script.graphs import WatchedGraph


@dataclass(slots=True)
class Write:
    """The last time that a storage was written."""

    stream: int
    tick: int
    """Of the stream's clock (``order.Order``)."""
    at: int
    """Of the watcher's count of events."""
    graph: WatchedGraph | None
    """The replay of this graph wrote it; None for an eager op."""
    chain: tuple[Site, ...] = ()
    frames: tuple[Frame, ...] = ()


@dataclass(slots=True, eq=False)
class Cell:
    """One storage. Holds no reference that keeps it alive."""

    key: int
    ref: StorageWeakRef
    bytes: int
    place: str
    """``device``, ``host``, ``pinned``."""
    address: int
    """On the device; of the allocator's model on the simulated one."""
    made_in: WatchedGraph | None = None
    """The graph in whose capture it was allocated."""
    write: Write | None = None
    read_by: Write | None = None
    """The last replay that reads it."""

    @property
    def end(self) -> int:
        return self.address + self.bytes


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """None for tensors that have no storage of their own (sparse, nested, functorch's)."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors anywhere in arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    for one in pytree.tree_leaves(value):
        if isinstance(one, torch.Tensor):
            yield one


class Cells:
    """All storages that some graph reads, writes or made."""

    def __init__(self) -> None:
        self._cells: dict[int, Cell] = {}

    def find(self, tensor: torch.Tensor) -> Cell | None:
        """The cell of a tensor's storage, if a graph knows it."""
        storage = storage_of(tensor)
        return None if storage is None else self._cells.get(storage._cdata)

    def known(self, key: int) -> Cell | None:
        return self._cells.get(key)

    def add(self, storage: torch.UntypedStorage, place: str, address: int) -> Cell:
        """The cell of a storage, made if need be."""
        key = storage._cdata
        cell = self._cells.get(key)
        if cell is None:
            # The weak reference keeps the number from being given to another storage.
            cell = Cell(key, StorageWeakRef(storage), storage.nbytes(), place, address)
            self._cells[key] = cell
        return cell

    def __len__(self) -> int:
        return len(self._cells)
