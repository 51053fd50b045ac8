"""Which storages the user's code still owns while records of its graphs own them too."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable

import torch

from cgtool.observe.tensors import key_of
from cgtool.torch_compat.private import storage_use_count
from cgtool.torch_compat.storages import OBJECTS_ARE_OWNERS, StorageRef


class RecordedOwners:
    """How many owners of a storage belong to records; the rest belong to the user's code."""

    def __init__(self) -> None:
        self._recorded: Counter[int] = Counter()
        self._objects: dict[int, StorageRef] = {}
        """Storages with a Python object, which is an owner as well."""

    def record_of(self, graph: object) -> Counter[int]:
        """How many owners of each storage belong to the record of a graph: counted (``hold``) until
        the record is freed, whether its capture succeeded or not."""
        owners: Counter[int] = Counter()
        weakref.finalize(graph, self._recorded.subtract, owners)
        return owners

    def hold(self, owners: Counter[int], tensors: Iterable[torch.Tensor]) -> None:
        """The record with these ``owners`` holds tensors."""
        for tensor in tensors:
            key = key_of(tensor)
            if key is not None:
                self._recorded[key] += 1
                owners[key] += 1

    def hold_object(self, tensor: torch.Tensor) -> None:
        """The storage of a tensor has been looked at through its Python object."""
        if OBJECTS_ARE_OWNERS:
            ref = StorageRef(tensor)
            self._objects.setdefault(ref.key, ref)

    def sweep(self) -> None:
        """Only the memory of scripts is in pools."""

    def is_dead(self, ref: StorageRef) -> bool:
        """True when only records own the storage."""
        ours = self._recorded[ref.key] + (ref.key in self._objects)
        return ref.expired() or storage_use_count(ref.key) <= ours
