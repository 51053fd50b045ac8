"""Everything that the user's code can reach and change: a walk from its callables.

``cgtool.program.objects.reach`` finds what a summary names, close to the function. This walk is
exhaustive, because a value that it misses is not restored between two runs that must begin in the
same state.

The state is the objects in each place (a dictionary, attributes, a cell, a gradient) and the
contents of the tensors that they lead to (``cgtool.jobs.verify.state``).
"""

from __future__ import annotations

import functools
import random
import sys
import types
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from cgtool.observe.frames import is_internal
from cgtool.observe.storage import strided_parts
from cgtool.torch_compat.private import MODULE_TABLES, is_traceable_wrapper_subclass

_MOST_ITEMS = 10_000
"""Longer containers hold data only, and are not followed."""
_FOLLOWED = ("torch.nn", "torch.optim", "torch.amp", "torch.cuda.amp", "torch.ao")
_LEFT = frozenset(sys.stdlib_module_names - {"collections", "types", "functools", "random"}) | {
    "cgtool", "numpy", "torch",
}  # fmt: skip


@dataclass
class Reachable:
    """The result of a walk, which keeps every object alive."""

    places: list[Place] = field(default_factory=list)
    tensors: dict[int, tuple[str, torch.Tensor]] = field(default_factory=dict)
    """By identity: the first path to it."""
    generators: list[torch.Generator] = field(default_factory=list)
    randoms: list[Any] = field(default_factory=list)
    """``random.Random``, ``numpy.random.Generator``, ``numpy.random.RandomState``."""
    arrays: list[Any] = field(default_factory=list)


def walk(roots: list[tuple[str, Any]]) -> Reachable:
    """Follow containers, attributes, closures and globals from the roots, breadth first."""
    reachable = Reachable()
    walker = _Walker(reachable)
    waiting: deque[tuple[str, Any]] = deque(roots)
    while waiting:
        path, value = waiting.popleft()
        waiting.extend(walker.visit(path, value))
    return reachable


class _Walker:
    def __init__(self, reachable: Reachable) -> None:
        self.reachable = reachable
        self._seen: dict[int, Any] = {}

    def visit(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Note an object, and yield its parts."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return
        if id(value) in self._seen or isinstance(value, type | types.ModuleType | types.CodeType):
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            yield from self._tensor(path, value)
        elif isinstance(value, dict):
            yield from self._items(path, DictPlace(value), len(value))
        elif isinstance(value, list | deque):
            yield from self._items(path, ListPlace(value), len(value))
        elif isinstance(value, set):
            yield from self._items(path, SetPlace(value), len(value))
        elif isinstance(value, tuple | frozenset):
            for index, item in enumerate(list(value)[:_MOST_ITEMS]):
                yield _joined(path, index), item
        elif isinstance(value, types.FunctionType):
            yield from self._function(path, value)
        elif isinstance(value, types.MethodType):
            yield path, value.__self__
            yield path, value.__func__
        elif isinstance(value, functools.partial):
            yield path, value.func
            yield path, value.args
            yield path, value.keywords
        elif isinstance(value, types.CellType):
            yield from self._items(path, CellPlace(value), 1)
        else:
            yield from self._object(path, value)

    def _items(self, path: str, place: Place, size: int) -> Iterator[tuple[str, Any]]:
        if size > _MOST_ITEMS:
            return
        self.reachable.places.append(place)
        for key, value in place.items().items():
            yield _joined(path, key), value
            if isinstance(key, torch.Tensor):
                yield path, key

    def _tensor(self, path: str, tensor: torch.Tensor) -> Iterator[tuple[str, Any]]:
        wraps: bool = is_traceable_wrapper_subclass(tensor)
        if wraps:
            # Its memory is that of its inner tensors.
            yield from ((f"{path}{suffix}", part) for suffix, part in strided_parts(tensor))
        else:
            self.reachable.tensors[id(tensor)] = path, tensor
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if plain and tensor.layout == torch.strided and not tensor.is_meta:
            self.reachable.places.append(DataPlace(tensor))
        if tensor.is_leaf and tensor.requires_grad:
            self.reachable.places.append(GradPlace(tensor))
            if tensor.grad is not None:
                yield f"gradient of {path}", tensor.grad

    def _function(self, path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._seen[id(cell)] = cell
            place = CellPlace(cell)
            self.reachable.places.append(place)
            for value in place.items().values():
                yield _joined("", name), value
        code = function.__code__
        arguments = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        yield from zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)
        yield from (function.__kwdefaults__ or {}).items()
        own = vars(function)
        users = not is_internal(code) and "-packages/" not in code.co_filename
        if own or users:
            yield from self._items(path, DictPlace(own), len(own))
        if not users:
            return
        names = tuple(
            name
            for name in dict.fromkeys(_names(code))
            if not isinstance(function.__globals__.get(name), types.ModuleType | type)
        )
        self.reachable.places.append(GlobalsPlace(function.__globals__, names))
        for name in names:
            if name in function.__globals__:
                yield name, function.__globals__[name]

    def _object(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        kind = type(value)
        if isinstance(value, torch.Generator):
            self.reachable.generators.append(value)
            return
        if isinstance(value, random.Random) or _from_numpy(value, "random"):
            self.reachable.randoms.append(value)
            return
        if _from_numpy(value, "") and hasattr(value, "tobytes") and hasattr(value, "flags"):
            self.reachable.arrays.append(value)
            return
        module = kind.__module__
        left = module.partition(".")[0] in _LEFT and not module.startswith(_FOLLOWED)
        if left and not isinstance(value, torch.nn.Module):
            return
        table = getattr(value, "__dict__", None)
        if isinstance(table, dict):
            self._seen[id(table)] = table
            prefix = "" if path in ("", "self") else path
            yield from self._items(prefix, DictPlace(table), len(table))
        slots = tuple(
            name
            for base in kind.__mro__
            for name in _slots_of(base)
            if name not in ("__dict__", "__weakref__")
        )
        if slots:
            yield from self._items(path, SlotsPlace(value, slots), len(slots))
        # Names in the methods of the class: a cache next to the class, a closure around it.
        for base in kind.__mro__:
            if not is_users(base):
                continue
            for member in list(vars(base).values()):
                function = (
                    member.__func__ if isinstance(member, staticmethod | classmethod) else member
                )
                if isinstance(function, types.FunctionType):
                    yield path, function


def is_users(kind: type) -> bool:
    """True for classes of the user's code, False for those of libraries."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names or file is None:
        return kind.__module__ in ("__main__",)
    return "-packages/" not in file and kind.__module__.partition(".")[0] not in ("torch", "cgtool")


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _from_numpy(value: Any, part: str) -> bool:
    module = type(value).__module__
    return module.startswith(f"numpy.{part}") if part else module == "numpy"


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


_SHORT = frozenset(MODULE_TABLES)


def _joined(path: str, key: Any) -> str:
    """``layers.0.weight``: without the names of a module's own dictionaries."""
    if isinstance(key, torch.Tensor) or key in _SHORT:
        return path
    return f"{path}.{key}" if path else str(key)


Items = dict[Any, Any]


class Place(ABC):
    """A place that holds objects and can be restored."""

    @abstractmethod
    def items(self) -> Items:
        """The objects in it, by key."""

    @abstractmethod
    def put(self, items: Items) -> None:
        """Make it hold exactly ``items``."""

    def restore(self, items: Items) -> None:
        """Make it hold ``items``, unless it still does."""
        now = self.items()
        if len(now) == len(items) and all(
            (key is current_key or _equal(key, current_key)) and value is current
            for (key, value), (current_key, current) in zip(items.items(), now.items(), strict=True)
        ):
            return
        self.put(items)


def _equal(key: Any, other: Any) -> bool:
    """Whether two keys are equal. Only keys of plain types are compared by value: the ``__eq__`` of
    others is the user's."""
    return isinstance(key, str | int | tuple) and type(key) is type(other) and key == other


class DictPlace(Place):
    """A dictionary, or the attributes of an object."""

    def __init__(self, table: dict[Any, Any]) -> None:
        self.table = table

    def items(self) -> Items:
        return dict(self.table)

    def put(self, items: Items) -> None:
        self.table.clear()
        self.table.update(items)


class GlobalsPlace(Place):
    """The globals that one function names."""

    def __init__(self, table: dict[str, Any], names: tuple[str, ...]) -> None:
        self.table = table
        self.names = names

    def items(self) -> Items:
        return {name: self.table[name] for name in self.names if name in self.table}

    def put(self, items: Items) -> None:
        for name in self.names:
            if name in items:
                self.table[name] = items[name]
            else:
                self.table.pop(name, None)


class ListPlace(Place):
    """A list or a deque."""

    def __init__(self, values: list[Any] | deque[Any]) -> None:
        self.values = values

    def items(self) -> Items:
        return dict(enumerate(self.values))

    def put(self, items: Items) -> None:
        self.values.clear()
        self.values.extend(items.values())


class SetPlace(Place):
    def __init__(self, values: set[Any]) -> None:
        self.values = values

    def items(self) -> Items:
        return dict.fromkeys(self.values)

    def put(self, items: Items) -> None:
        self.values.clear()
        self.values.update(items)


class SlotsPlace(Place):
    """The ``__slots__`` of an object."""

    def __init__(self, owner: Any, names: tuple[str, ...]) -> None:
        self.owner = owner
        self.names = names

    def items(self) -> Items:
        return {name: getattr(self.owner, name) for name in self.names if hasattr(self.owner, name)}

    def put(self, items: Items) -> None:
        for name in self.names:
            if name in items:
                object.__setattr__(self.owner, name, items[name])
            elif hasattr(self.owner, name):
                object.__delattr__(self.owner, name)


class CellPlace(Place):
    """A variable that a function closes over."""

    def __init__(self, cell: types.CellType) -> None:
        self.cell = cell

    def items(self) -> Items:
        try:
            return {0: self.cell.cell_contents}
        except ValueError:
            return {}

    def put(self, items: Items) -> None:
        if items:
            self.cell.cell_contents = items[0]
        else:
            del self.cell.cell_contents


class GradPlace(Place):
    """``.grad`` of a leaf."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def items(self) -> Items:
        return {"grad": self.tensor.grad}

    def put(self, items: Items) -> None:
        self.tensor.grad = items["grad"]


class DataPlace(Place):
    """The memory of a tensor, which ``p.data = q`` replaces."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def items(self) -> Items:
        return {"data": self.tensor.detach()}

    def put(self, items: Items) -> None:
        self.tensor.data = items["data"]

    def restore(self, items: Items) -> None:
        data = items["data"]
        if self.tensor.data_ptr() != data.data_ptr() or self.tensor.shape != data.shape:
            self.put(items)
