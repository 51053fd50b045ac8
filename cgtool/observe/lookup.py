"""What a name of the user's code leads to, without running the user's code."""

from __future__ import annotations

import collections
import gc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cgtool.torch_compat.private import MODULE_TABLES, children_of

MISSING = object()
"""The value of a name, attribute or item that does not exist."""


def weakly(value: Any) -> Callable[[], Any] | None:
    """A weak reference, or None for what has none: also for streams and events, because the
    destructors of those of CUDA leave weak references dangling (seen in PyTorch 2.11)."""
    if isinstance(value, torch.Event | torch.Stream):
        return None
    try:
        return weakref.ref(value)
    except TypeError:
        return None


class Identity:
    """An object as itself: equal to no other, nor to one that is at its address after its death.
    Does not keep it alive."""

    __slots__ = ("_address", "_weak")

    def __init__(self, value: Any) -> None:
        self._address = id(value)
        self._weak = weakly(value)

    @property
    def is_alive(self) -> bool:
        """Whether the object is known to be alive."""
        return self._weak is not None and self._weak() is not None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Identity)
            and self._address == other._address
            and not any(weak is not None and weak() is None for weak in (self._weak, other._weak))
        )

    def __hash__(self) -> int:
        return self._address


def content_of(cell: types.CellType) -> Callable[[], Any]:
    def content() -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return MISSING

    return content


def cells_of(code: types.CodeType, values: dict[str, Any]) -> Iterator[dict[str, types.CellType]]:
    """The cells of the functions that run this code, which frames do not have. Of several
    functions, those whose cells hold what a frame's names hold."""
    candidates = [
        dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
        for function in gc.get_referrers(code)
        if isinstance(function, types.FunctionType) and function.__code__ is code
    ]
    matching = [
        cells
        for cells in candidates
        if all(content_of(cell)() is values.get(name, MISSING) for name, cell in cells.items())
    ]
    yield from matching or candidates


def resolve(value: Any, steps: tuple[tuple[str, str | int], ...]) -> Any:
    """Follow attributes and items without running the user's code."""
    for kind, name in steps:
        if value is None or value is MISSING:
            return MISSING
        if kind == "item":
            value = _item(value, name)
        else:
            value = attribute_of(value, str(name))
    return value


def _item(value: Any, key: str | int) -> Any:
    if isinstance(value, dict):
        return dict.get(value, key, MISSING)
    is_array = type(value).__module__ == "numpy" and getattr(value, "ndim", 0) > 0
    is_sequence = is_array or isinstance(value, list | tuple | collections.deque)
    if is_sequence and isinstance(key, int):
        return value[key] if -len(value) <= key < len(value) else MISSING
    if isinstance(value, torch.nn.ModuleList | torch.nn.Sequential) and isinstance(key, int):
        return children_of(value).get(str(key), MISSING)
    return MISSING


def attribute_of(value: Any, name: str) -> Any:
    """What Python finds, without running the user's code: properties are not called. The first
    of: a field in C of its type (a slot, a field of a named tuple), an attribute of its own, one of
    its types."""
    if name == "__class__":
        return type(value)
    table = _table_of(value)
    if name == "__dict__":
        return table
    is_type = isinstance(value, type)
    member = next(
        (base.__dict__[name] for base in type(value).__mro__ if name in base.__dict__), MISSING
    )
    if isinstance(member, _FIELDS) and not is_type:
        try:
            return member.__get__(value)
        except AttributeError:
            return MISSING
    for part in value.__mro__ if is_type else ():
        if name in part.__dict__:
            return _bound(part.__dict__[name], None, value)
    if isinstance(table, dict):
        if name in table:
            return table[name]
        if isinstance(value, torch.nn.Module):
            for part in MODULE_TABLES:
                inner = table.get(part) or {}
                if name in inner:
                    return inner[name]
    if is_type or isinstance(value, types.ModuleType):
        return MISSING
    return _bound(member, value, type(value))


_FIELDS = types.MemberDescriptorType, type(vars(collections.namedtuple("_Pair", "a"))["a"])
_BY_PYTHON = types.FunctionType, classmethod, staticmethod


def _bound(member: Any, instance: Any, owner: type) -> Any:
    """An attribute of a type as its instance, or the type itself, has it."""
    if isinstance(member, _BY_PYTHON):
        return member.__get__(instance, owner)
    return MISSING if hasattr(type(member), "__get__") else member


def _table_of(value: Any) -> Any:
    """The ``__dict__`` of an object: for `threading.local` that of the running thread."""
    for base in type(value).__mro__:
        find = base.__dict__.get("__getattribute__")
        if isinstance(find, types.WrapperDescriptorType):
            try:
                return find(value, "__dict__")
            except Exception:  # slots, builtins, and objects whose attributes raise
                return MISSING
    return MISSING


def is_immutable(value: Any) -> bool:
    """Whether its attributes and items cannot be assigned to: a tuple, a frozen dataclass."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    return isinstance(value, tuple) or bool(getattr(parameters, "frozen", False))
