"""Places that hold objects and can be restored: containers, attributes, globals, tensors."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cgtool.observe.frames import locals_of, set_locals, suspended_frame
from cgtool.torch_compat.storages import storage_bytes

Items = dict[Any, Any]


def same_objects(now: Items, items: Items) -> bool:
    """Whether a place holds the same objects."""
    return len(now) == len(items) and all(
        (key is current_key or _equal(key, current_key)) and value is current
        for (key, value), (current_key, current) in zip(items.items(), now.items(), strict=True)
    )


def _equal(key: Any, other: Any) -> bool:
    """Whether two keys are equal. Only keys of plain types are compared by value: the ``__eq__`` of
    others is the user's."""
    return isinstance(key, str | int | tuple) and type(key) is type(other) and key == other


def _same_memory(now: Items, items: Items) -> bool:
    data, saved = now["data"], items["data"]
    same = bool(data.data_ptr() == saved.data_ptr() and data.shape == saved.shape)
    return same and now["bytes"] == items["bytes"]


@dataclass
class Place:
    """A place that holds objects and can be restored."""

    items: Callable[[], Items]
    """The objects in it, by key."""
    put: Callable[[Items], None]
    """Sets it to exactly these."""
    same: Callable[[Items, Items], bool] = same_objects
    path: str = ""
    """How the code names it; "" for what has no name of its own: the globals of a function."""
    owner: tuple[Any, ...] = ()
    """Whose it is, by identity: another walk finds the same place of the same owner."""
    is_indexed: bool = False
    """The code names what is in it by its key in brackets."""

    def name_of(self, key: Any) -> str:
        """How the code names what has this key."""
        if isinstance(key, str) and key in _NAMELESS:
            return self.path
        return indexed(self.path, key) if self.is_indexed else dotted(self.path, key)

    def restore(self, items: Items) -> None:
        """Set it to ``items``, unless it still has them."""
        if not self.same(self.items(), items):
            self.put(items)


_NAMELESS = ("cell_contents", "data")
"""Keys of places that hold one thing, whose path is its name."""


def dotted(path: str, key: Any) -> str:
    """The path to an attribute."""
    return f"{path}.{_text(key)}" if path else _text(key)


def indexed(path: str, key: Any) -> str:
    """The path to an item of a container."""
    return f"{path}[{_text(key, repr)}]" if path else _text(key)


def _text(key: Any, text: Callable[[Any], str] = str) -> str:
    is_plain = type(key) in (str, bytes, int, float, bool, complex, type(None))
    return text(key) if is_plain else f"<{type(key).__name__}>"


def container(value: Any, *, is_indexed: bool = False) -> Place:
    """A dictionary (the attributes of an object too), a set, a list or a deque."""

    def items() -> Items:
        if isinstance(value, dict):
            # Not by the methods of a subclass, which may be the user's.
            return dict(dict.items(value))
        return {each: each for each in value} if isinstance(value, set) else dict(enumerate(value))

    def put(items: Items) -> None:
        value.clear()
        if isinstance(value, dict | set):
            value.update(items)
        else:
            value.extend(items.values())

    return Place(items, put, owner=("items", id(value)), is_indexed=is_indexed)


_ABSENT = (AttributeError, LookupError, ValueError)
"""Raised for a slot, a global, a cell and a context variable that hold nothing."""


def variables(
    names: tuple[str, ...],
    get: Callable[[str], Any],
    assign: Callable[[str, Any], object],
    delete: Callable[[str], object],
    owner: Any,
) -> Place:

    def items() -> Items:
        values = {}
        for name in names:
            with contextlib.suppress(*_ABSENT):
                values[name] = get(name)
        return values

    def put(items: Items) -> None:
        for name in names:
            if name in items:
                assign(name, items[name])
            else:
                with contextlib.suppress(*_ABSENT):
                    delete(name)

    return Place(items, put, owner=(*names, id(owner)))


def attributes(owner: Any, names: tuple[str, ...]) -> Place:
    """Attributes that may be unset: slots, a cell, a gradient."""
    return variables(
        names,
        partial(getattr, owner),
        partial(object.__setattr__, owner),
        partial(object.__delattr__, owner),
        owner,
    )


def entries(table: dict[str, Any], names: tuple[str, ...]) -> Place:
    """Entries of a dictionary that may be absent: the globals that a function names."""
    return variables(names, table.__getitem__, table.__setitem__, table.__delitem__, table)


def frame_names(suspended: Any, names: set[str]) -> Place:
    """Names in the frame of a generator or coroutine, which can be set back as long as it is
    suspended where it is now."""
    frame = suspended_frame(suspended)
    at = None if frame is None else frame.f_lasti

    def items() -> Items:
        now = suspended_frame(suspended)
        values = {} if now is None or now.f_lasti != at else locals_of(now)
        return {name: values[name] for name in sorted(names) if name in values}

    def put(items: Items) -> None:
        now = suspended_frame(suspended)
        if now is not None and now.f_lasti == at:
            set_locals(now, items)

    return Place(items, put, owner=("names", id(suspended)))


def memory_file(file: io.StringIO | io.BytesIO) -> Place:
    """The contents of a file in memory, and its position."""

    def items() -> Items:
        return {} if file.closed else {"content": file.getvalue(), "at": file.tell()}

    def put(items: Items) -> None:
        if items and not file.closed:
            file.seek(0)
            file.truncate()
            file.write(items["content"])
            file.seek(items["at"])

    return Place(items, put, lambda now, items: now == items, owner=("file", id(file)))


def written_file(file: Any) -> Place:
    """How far an open file has been written: what is added to it later is taken away again. Nothing
    for a standard stream, and for what has no end, like a pipe."""

    def items() -> Items:
        is_kept = not file.closed and file.writable() and file.seekable() and file.fileno() > 2
        if not is_kept:
            return {}
        file.flush()
        return {"end": (file.tell(), os.fstat(file.fileno()).st_size)}

    def put(items: Items) -> None:
        if items and not file.closed:
            at, size = items["end"]
            file.seek(at)
            file.truncate(size)

    return Place(items, put, lambda now, items: now == items, owner=("file", id(file)))


def memory(tensor: torch.Tensor) -> Place:
    """The memory of a tensor, which ``p.data = q`` replaces, and of which
    ``p.untyped_storage().resize_(0)`` frees what is in it."""

    def put(items: Items) -> None:
        tensor.data = items["data"]
        if storage_bytes(tensor) != items["bytes"]:
            tensor.untyped_storage().resize_(items["bytes"])

    return Place(
        lambda: {"data": tensor.detach(), "bytes": storage_bytes(tensor)},
        put,
        _same_memory,
        owner=("memory", id(tensor)),
    )
