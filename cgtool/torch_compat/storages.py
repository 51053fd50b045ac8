"""References to the storages of tensors that no one counts as owners.

In recent releases of PyTorch ``tensor.untyped_storage()`` makes a Python object that lives as long
as the storage, as an owner of it. Autograd adds up gradients in place only where a storage has a
single owner (input_buffer.cpp, ``can_accumulate_inplace``): looking at a storage would make the
program run other ops. So an object of cgtool's own is pointed at the storage for a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from cgtool.torch_compat.private import (
    direct_storage,
    free_weak_storage,
    storage_address,
    storage_key,
    storage_of_weak,
    storage_use_count,
    weak_storage,
    weak_storage_expired,
)
from cgtool.torch_compat.weak import Weak

T = TypeVar("T")
device_of: Callable[[torch.UntypedStorage], torch.device] = torch.UntypedStorage.device.__get__
"""The real device of a storage: one on the simulated GPU says that it is there."""
_copy, _nbytes = torch.UntypedStorage.copy_, torch.UntypedStorage.nbytes
_data_ptr = torch.UntypedStorage.data_ptr


def copy_bytes(target: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
    """Copy a storage over another, which gets its size, whatever takes the place of PyTorch's
    functions."""
    if target.nbytes() != source.nbytes():
        target.resize_(source.nbytes())
    _copy(target, source)


def _objects_are_owners() -> bool:
    """Whether the Python object of a storage is an owner even while nobody refers to it."""
    tensor = torch.empty(0, device="cpu")
    tensor.untyped_storage()
    return storage_use_count(storage_address(tensor)) > 1


OBJECTS_ARE_OWNERS = _objects_are_owners()


def _storage_object() -> tuple[torch.UntypedStorage, int, torch.UntypedStorage]:
    """An object, the key of its own storage, and what keeps that storage alive (a slice owns what
    it is a slice of)."""
    storage = torch.UntypedStorage(0)
    return storage, storage_key(storage), storage[:0]


_unused = [_storage_object()]
"""A list, because threads and finalizers may need an object while another is directed."""


def _look(tensor: torch.Tensor, look: Callable[[torch.UntypedStorage], T]) -> T:
    """The result of ``look`` for a tensor's storage, which it must not keep."""
    if not OBJECTS_ARE_OWNERS:
        return look(tensor.untyped_storage())
    return _look_at(storage_address(tensor), look)


def _look_at(key: int, look: Callable[[torch.UntypedStorage], T]) -> T:
    """The result of ``look`` for a living storage by its ``storage_key``."""
    if not OBJECTS_ARE_OWNERS:
        return look(storage_of_weak(key))  # there, an object that is directed frees a storage twice
    try:
        known = _unused.pop()
    except IndexError:
        known = _storage_object()
    storage, own, _ = known
    try:
        direct_storage(storage, key)
        return look(storage)
    finally:
        direct_storage(storage, own)
        _unused.append(known)


def weak_reference(tensor: torch.Tensor) -> int:
    """The ``storage_key`` of a tensor's storage, which no other storage gets before
    ``free_weak_storage`` is called."""
    return _look(tensor, weak_storage)


def storage_bytes(tensor: torch.Tensor) -> int:
    """The size of a tensor's storage. Raises RuntimeError for a tensor
    without a storage of its own."""
    return _look(tensor, _nbytes)


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage: other work may fill other parts of one."""
    return tensor.numel() * tensor.element_size() == storage_bytes(tensor)


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of memory from the first to the last one of a strided tensor, gaps included."""
    if not all(shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in its storage a tensor is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """In elements."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return cls(tensor.dtype, shape, stride, int(tensor.storage_offset()))

    def overlaps(self, other: Layout) -> bool:
        """Whether the bytes from the first to the last one of two tensors in one storage do."""
        (first, end), (first_of_other, end_of_other) = self.span, other.span
        return first < end_of_other and first_of_other < end

    @property
    def span(self) -> tuple[int, int]:
        """Offsets in the storage, in bytes: of its first byte, and of the byte behind its last."""
        size = self.dtype.itemsize
        return self.offset * size, (self.offset + extent(self.shape, self.stride)) * size


class StorageRef:
    """A storage, which this does not keep alive; equal to others of the same storage."""

    __slots__ = ("address", "bytes", "key")

    def __init__(self, tensor: torch.Tensor) -> None:
        """Raises NotImplementedError for a tensor without a storage of its own."""
        self.key = 0
        _look(tensor, self._refer)

    @classmethod
    def by_key(cls, key: int) -> StorageRef:
        """One of a living storage, by its ``storage_key``."""
        reference = cls.__new__(cls)
        reference.key = 0
        _look_at(key, reference._refer)
        return reference

    def _refer(self, storage: torch.UntypedStorage) -> None:
        self.key = weak_storage(storage)
        """The ``storage_key``, which no other storage gets while this lives: the memory of a dead
        storage's own few bytes is kept."""
        try:
            self.address = storage.data_ptr()
            """0 without memory."""
        except RuntimeError:  # no memory: the zero tangents of forward mode
            self.address = 0
        self.bytes = storage.nbytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageRef) and self.key == other.key

    def __hash__(self) -> int:
        return self.key

    def expired(self) -> bool:
        """Whether the storage was freed."""
        return weak_storage_expired(self.key)

    def is_emptied(self) -> bool:
        """Whether it lives and has given back the memory that it had."""
        return bool(self.bytes) and not self.expired() and not _look_at(self.key, _nbytes)

    def is_moved(self) -> bool:
        """Whether it has other memory, or none. It must not have been freed."""
        return _look_at(self.key, _data_ptr) != self.address

    def when_freed(self, call: Callable[[], None]) -> Weak[torch.UntypedStorage] | None:
        """Call back when the storage is freed, as long as what this returns is kept; None if it was
        freed before. The storage gets a Python object, which lives as long as it does: without
        ``OBJECTS_ARE_OWNERS`` as long as this does, so that there is no call."""
        if self.expired():
            return None
        storage = storage_of_weak(self.key)
        return Weak(storage, lambda _: call())

    def tensor(self, layout: Layout) -> torch.Tensor | None:
        """A new tensor in the storage, which owns it too; None if the storage was freed."""

        def make(storage: torch.UntypedStorage) -> torch.Tensor:
            empty = torch.empty(0, dtype=layout.dtype, device=device_of(storage))
            return empty.set_(storage, layout.offset, layout.shape, layout.stride)

        return None if self.expired() else _look_at(self.key, make)

    def everything(self) -> torch.Tensor | None:
        """``tensor`` of all bytes."""
        return self.tensor(Layout(torch.uint8, (self.bytes,), (1,), 0))

    def __del__(self, free: Any = free_weak_storage) -> None:
        # An argument, because modules may be cleared before this when Python ends.
        if self.key:
            free(self.key)


class StorageMarks(Generic[T]):
    """A word, or a fact, about each of many storages, which this does not keep alive.

    A storage that is freed takes its word with it: its key is given to no other storage before the
    word is dropped.
    """

    _FEWEST = 1024

    def __init__(self) -> None:
        self._words: dict[int, T] = {}
        self._dropping = threading.Lock()
        self._most = self._FEWEST
        """With more words than this, those of freed storages are dropped."""

    def get(self, key: int | None) -> T | None:
        """The word about a storage by its ``storage_key``."""
        return None if key is None else self._words.get(key)

    def put(self, tensor: torch.Tensor, word: T) -> None:
        """Raises RuntimeError for a tensor without a storage of its own."""
        self._put(storage_address(tensor), word, lambda: weak_reference(tensor))

    def put_storage(self, storage: torch.UntypedStorage, word: T) -> None:
        self._put(storage_key(storage), word, lambda: weak_storage(storage))

    def __bool__(self) -> bool:
        return bool(self._words)

    def _put(self, key: int, word: T, refer: Callable[[], int]) -> None:
        if key not in self._words:
            refer()
            if len(self._words) >= self._most and self._dropping.acquire(blocking=False):
                try:
                    self._drop_freed()
                finally:
                    self._dropping.release()
        self._words[key] = word

    def _drop_freed(self) -> None:
        # A copy: other threads go on adding words.
        for key in list(self._words):
            if weak_storage_expired(key):
                del self._words[key]
                free_weak_storage(key)
        self._most = max(self._FEWEST, 2 * len(self._words))
