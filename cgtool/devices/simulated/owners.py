"""Who owns the storages of a simulated graph, and where a GPU's allocator would have put them.

A record of a capture holds every tensor that it replays on, so that none of them ever dies; what
the script has let go of shows in how many owners there are beside the record.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cgtool.devices.simulated.memory import PoolBlock, PrivatePool
from cgtool.observe.storage import storage_of
from cgtool.torch_compat.private import pytree, storage_key, storage_use_count


def _wrapper_counts() -> int:
    """1 where PyTorch counts the Python object of a storage among its owners, else 0."""
    tensor = torch.empty(1)
    return int(storage_use_count(storage_key(tensor.untyped_storage()))) - 1


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
                    key = storage_key(storage)
                    self.counts[key] = self.counts.get(key, 0) + change

    def dead(self, ref: StorageWeakRef) -> bool:
        """True when nothing but records owns the storage."""
        if ref.expired():
            return True
        # Every storage that was looked at has its Python object.
        own = self.counts.get(ref.cdata, 0) + self._wrapper
        return int(storage_use_count(ref.cdata)) <= own


class Places:
    """Addresses of what captures allocate, by the model of the caching allocator."""

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
        """Give back what the user has let go."""
        for key, (ref, pool, block) in list(self._live.items()):
            if self.owners.dead(ref):
                pool.free(block)
                del self._live[key]
