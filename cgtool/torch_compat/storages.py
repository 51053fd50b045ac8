"""References to the storages of tensors that no one counts as owners.

In recent releases of PyTorch ``tensor.untyped_storage()`` makes a Python object that lives as long
as the storage, as an owner of it. Autograd adds up gradients in place only where a storage has a
single owner (input_buffer.cpp, ``can_accumulate_inplace``): the program would run other ops because
of the look at it. Here an object of cgtool's own is directed to the storage for a moment.
"""

from __future__ import annotations

from typing import Any

import torch

from cgtool.torch_compat.private import (
    direct_storage,
    free_weak_storage,
    storage_address,
    storage_key,
    storage_use_count,
    weak_storage,
    weak_storage_expired,
)


def _objects_are_owners() -> bool:
    """Whether the Python object of a storage is an owner even while nobody refers to it."""
    tensor = torch.empty(0, device="cpu")
    tensor.untyped_storage()
    return storage_use_count(storage_address(tensor)) > 1


_OBJECTS_ARE_OWNERS = _objects_are_owners()


def _storage_object() -> tuple[torch.UntypedStorage, int, torch.UntypedStorage]:
    """An object, the key of its own storage, and what keeps that one alive: a slice owns what it is
    a slice of."""
    storage = torch.UntypedStorage(0)
    return storage, storage_key(storage), storage[:0]


_unused = [_storage_object()]
"""A list, because threads and finalizers may need an object while another is directed."""


class StorageRef:
    """A storage, which this does not keep alive."""

    __slots__ = ("address", "bytes", "key")

    def __init__(self, tensor: torch.Tensor) -> None:
        """Raises NotImplementedError for a tensor without a storage of its own."""
        self.key = 0
        if not _OBJECTS_ARE_OWNERS:
            self._refer(tensor.untyped_storage())
            return
        key = storage_address(tensor)
        try:
            known = _unused.pop()
        except IndexError:
            known = _storage_object()
        storage, own, _ = known
        try:
            direct_storage(storage, key)
            self._refer(storage)
        finally:
            direct_storage(storage, own)
            _unused.append(known)

    def _refer(self, storage: torch.UntypedStorage) -> None:
        self.key = weak_storage(storage)
        """The ``storage_key``, which no other storage gets while this lives: the memory of a dead
        storage's own few bytes is kept."""
        self.address = storage.data_ptr()
        self.bytes = storage.nbytes()

    def expired(self) -> bool:
        """Whether the storage was freed."""
        return weak_storage_expired(self.key)

    def __del__(self, free: Any = free_weak_storage) -> None:
        # An argument, because modules may be cleared before this when Python ends.
        if self.key:
            free(self.key)
