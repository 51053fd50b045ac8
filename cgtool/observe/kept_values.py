"""Values of names, to be looked up again much later, without keeping alive what they lead to."""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from cgtool.observe.tensors import key_of
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import base_of, no_torch_function
from cgtool.torch_compat.storages import StorageRef
from cgtool.torch_compat.weak import Weak

MISSING = object()
"""Stands for a value that is gone."""
_CONTAINERS = list, dict, set, deque, types.SimpleNamespace
"""Types of what holds other things and has no weak references."""
_DEPTH = 3
_FEW = 8
"""Items by which a container is known again."""
_MOST_COPIED = 64
"""Items of a container that is made again."""
_SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def weakly(value: Any) -> Callable[[], Any] | None:
    """A weak reference, or None for what has none: also for streams and events, because the
    destructors of those of CUDA leave weak references dangling (seen in PyTorch 2.11)."""
    if isinstance(value, torch.Event | torch.Stream):
        return None
    try:
        return Weak(value)
    except TypeError:
        return None


def kept(value: Any, depth: int = _DEPTH) -> Callable[[], Any] | None:
    """A function that returns the value later, or ``MISSING`` if it is gone; None if nothing but a
    reference could. ``depth``: steps into what functions hold."""
    if isinstance(value, (*_SIMPLE, torch.Stream, torch.Event, range, slice)):
        return lambda: value
    if type(value) in weakref.ProxyTypes:
        return lambda: value
    if type(value) is types.MethodType:
        return _method(value, depth)
    if type(value) is tuple:
        return _tuple(value, depth)
    if depth and type(value) is types.FunctionType:
        return _function(value, depth - 1)
    if depth and type(value) is functools.partial:
        return _partial(value, depth - 1)
    if type(value) in _CONTAINERS:
        return (lambda: value) if _is_plain(value) else _Container(value, depth)
    return _alive(value)


def _alive(value: Any) -> Callable[[], Any] | None:
    reference = weakly(value)
    if reference is None:
        return (lambda: value) if _is_immutable(value) else None
    again = _view(value) if type(value) is torch.Tensor else None

    def look_up() -> Any:
        found = reference()
        if found is None and again is not None:
            found = again()
        return MISSING if found is None else found

    return look_up


def _view(value: torch.Tensor) -> Callable[[], torch.Tensor | None] | None:
    """Returns a view again while its base is there: engines slice their buffers for each call."""
    base = base_of(value)
    if base is None or value.requires_grad or key_of(base) is None:
        return None
    if (value.dtype, value.is_conj(), value.is_neg()) != (base.dtype, False, False):
        return None
    alive, storage = Weak(base), StorageRef(base)
    place = value.size(), value.stride(), value.storage_offset()

    def look_up() -> torch.Tensor | None:
        found = alive()
        if found is None or key_of(found) != storage.key or storage.is_emptied():
            return None
        with unobserved(), no_torch_function(), torch.no_grad():
            return found.as_strided(*place)

    return look_up


def _method(value: types.MethodType, depth: int) -> Callable[[], Any] | None:
    instance, function = kept(value.__self__, depth), value.__func__
    if instance is None:
        return None

    def look_up() -> Any:
        found = instance()
        return MISSING if found is MISSING else types.MethodType(function, found)

    return look_up


def _tuple(value: tuple[Any, ...], depth: int) -> Callable[[], Any] | None:
    parts = [kept(part, depth) for part in value]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None

    def look_up() -> Any:
        found = tuple(part() for part in known)
        return MISSING if any(part is MISSING for part in found) else found

    return look_up


def _function(value: types.FunctionType, depth: int) -> Callable[[], Any] | None:
    """A function of the captured code's own may be gone by then, and is made again."""
    alive, code, outer = Weak(value), value.__code__, value.__globals__
    contents = _tuple(tuple(_content_of(cell)() for cell in value.__closure__ or ()), depth)
    defaults, named = kept(value.__defaults__, depth), kept_dict(value.__kwdefaults__ or {}, depth)

    def look_up() -> Any:
        found = alive()
        if found is not None:
            return found
        if contents is None or defaults is None or named is None:
            return MISSING
        parts = contents(), defaults(), named()
        if any(part is MISSING for part in parts):
            return MISSING
        cells = tuple(map(types.CellType, parts[0]))
        made = types.FunctionType(code, outer, code.co_name, parts[1], cells)
        made.__kwdefaults__ = parts[2]
        return made

    return look_up


def _partial(value: functools.partial[Any], depth: int) -> Callable[[], Any] | None:
    alive, parts = Weak(value), _tuple((value.func, *value.args), depth)
    named = kept_dict(value.keywords, depth)

    def look_up() -> Any:
        found = alive()
        if found is not None or parts is None or named is None:
            return MISSING if found is None else found
        given, keywords = parts(), named()
        is_gone = given is MISSING or keywords is MISSING
        return MISSING if is_gone else functools.partial(*given, **keywords)

    return look_up


def kept_dict(values: dict[Any, Any], depth: int = _DEPTH) -> Callable[[], Any] | None:
    """A function that returns another dictionary with the same keys and values; as ``kept``."""
    keys, look_up = tuple(values), _tuple(tuple(values.values()), depth)
    if look_up is None:
        return None

    def again() -> Any:
        found = look_up()
        return MISSING if found is MISSING else dict(zip(keys, found, strict=True))

    return again


class _Identity:
    """An object as itself: equal to no other, nor to one that is at its address after its death.
    Does not keep it alive."""

    __slots__ = ("_address", "_weak")

    def __init__(self, value: Any) -> None:
        self._address = id(value)
        self._weak = weakly(value)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Identity)
            and self._address == other._address
            and not any(weak is not None and weak() is None for weak in (self._weak, other._weak))
        )

    def __hash__(self) -> int:
        return self._address


class _Container:
    """A container, which has no weak references: it is known by its address and some items. One of
    the captured code's own may be gone by then, and is made again."""

    def __init__(self, value: Any, depth: int) -> None:
        self._type, self._address = type(value), id(value)
        self._items = [_Identity(item) for item in _items_of(value)]
        self._again = _copy_of(value, depth - 1) if depth else None

    def __call__(self) -> Any:
        for each in gc.get_objects():
            if id(each) == self._address and type(each) is self._type:
                items = [*map(_Identity, _items_of(each))]
                if not self._items or any(item in items for item in self._items):
                    return each
        return MISSING if self._again is None else self._again()


def _copy_of(value: Any, depth: int) -> Callable[[], Any] | None:
    """Another container with the same items; None for a large one."""
    kind, table = type(value), _table_of(value)
    if len(table) > _MOST_COPIED:
        return None
    if isinstance(table, dict):
        named = kept_dict(table, depth)
        if named is None or kind is dict:
            return named
        return lambda: MISSING if (found := named()) is MISSING else kind(**found)
    items = _tuple(tuple(table), depth)
    if items is None:
        return None
    return lambda: MISSING if (found := items()) is MISSING else kind(found)


def _is_plain(container: Any) -> bool:
    """Whether it keeps nothing alive, nor will: programs put other things into empty ones."""
    content = _table_of(container)
    items = [*content, *(content.values() if isinstance(content, dict) else ())]
    return bool(items) and all(isinstance(item, _SIMPLE) for item in items)


def _items_of(value: Any) -> list[Any]:
    content = _table_of(value)
    items: Iterable[Any] = content.values() if isinstance(content, dict) else content
    return [item for item, _ in zip(items, range(_FEW), strict=False)]


def _content_of(cell: types.CellType) -> Callable[[], Any]:
    def content() -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return MISSING

    return content


def _is_immutable(value: Any) -> bool:
    """Whether its attributes and items cannot be assigned to: a tuple, a frozen dataclass."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    return isinstance(value, tuple) or bool(getattr(parameters, "frozen", False))


def _table_of(container: Any) -> Any:
    return vars(container) if type(container) is types.SimpleNamespace else container
