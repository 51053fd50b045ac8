"""What a name of the user's code leads to, without running the user's code."""

from __future__ import annotations

import collections
import gc
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from cgtool.torch_compat.private import MODULE_TABLES, TABLES_OF
from cgtool.torch_compat.weak import Weak

MISSING = object()
"""The value of a name, attribute or item that does not exist."""


def weakly(value: Any) -> Callable[[], Any] | None:
    """A weak reference, or None for what has none: also for streams and events, because the
    destructors of those of CUDA leave weak references dangling (seen in PyTorch 2.11)."""
    if isinstance(value, torch.Event | torch.Stream):
        return None
    try:
        return Weak(value)
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


def behind(value: Any) -> Any:
    """What stands behind a view of a dict (`types.MappingProxyType`) or a `weakref.proxy`; anything
    else is itself."""
    if type(value) in weakref.ProxyTypes:
        # `isinstance` asks the object, which may be gone.
        try:
            return value.__repr__.__self__
        except (ReferenceError, AttributeError):
            return MISSING
    if isinstance(value, types.MappingProxyType):
        return gc.get_referents(value)[0]
    return value


def is_gone(value: Any) -> bool:
    """Whether it is a weak proxy of an object that is gone: even `isinstance` raises for it."""
    return type(value) in weakref.ProxyTypes and behind(value) is MISSING


def _is_of_python(kind: type | None) -> bool:
    """Whether a type belongs to Python or to its own modules."""
    return str(getattr(kind, "__module__", "")).split(".")[0] in sys.stdlib_module_names


def attribute_of(value: Any, name: str) -> Any:
    """What Python finds, without running the user's code: of properties, only those of Python's
    own modules are called. The first of: a field in C of its type (a slot, a field of a named
    tuple), an attribute of its own, one of its types."""
    if name == "__class__":
        return type(value)
    table = _table_of(value)
    if name == "__dict__":
        return table
    is_type = isinstance(value, type)
    base = next((base for base in type(value).__mro__ if name in base.__dict__), None)
    member: Any = MISSING if base is None else base.__dict__[name]
    is_read = isinstance(member, (*_FIELDS, *(_COMPUTED if _is_of_python(base) else ())))
    if is_read and not is_type:
        try:
            return member.__get__(value)
        except Exception:  # an empty slot, a closed file
            return MISSING
    for part in value.__mro__ if is_type else ():
        if name in part.__dict__:
            return _bound(part.__dict__[name], None, value)
    if isinstance(table, dict):
        if name in table:
            return table[name]
        if isinstance(value, torch.nn.Module):
            is_script = isinstance(value, torch.jit.ScriptModule)
            for part, of_module in zip(MODULE_TABLES, TABLES_OF, strict=True):
                inner = of_module(value) if is_script else table.get(part) or {}
                if name in inner:
                    return inner[name]
    if is_type or isinstance(value, types.ModuleType):
        return MISSING
    return _bound(member, value, type(value))


_FIELDS = types.MemberDescriptorType, type(vars(collections.namedtuple("_Pair", "a"))["a"])
_COMPUTED = property, types.GetSetDescriptorType, types.DynamicClassAttribute
"""What computes an attribute: ``value`` of a shared number, of one of `ctypes` and of an enum."""
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
