"""Everything that the user's code can reach and change: a walk from its callables.

``cgtool.program.objects.reach`` finds what a summary names, close to the function. This walk is
exhaustive, because a value that it misses is not restored between two runs that must begin in the
same state.

The state is the objects in each place (a dictionary, attributes, a cell, a gradient) and the
contents of the tensors that they lead to (``cgtool.jobs.verify.state``).
"""

from __future__ import annotations

import contextlib
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cgtool.observe.frames import is_internal
from cgtool.observe.tensors import has_shape, whole_or_parts
from cgtool.program.workload import Workload
from cgtool.torch_compat.private import MODULE_TABLES, TENSOR_HOOKS

Items = dict[Any, Any]
Named = Iterator[tuple[str, Any]]
"""Objects with their paths."""

_MOST_ITEMS = 10_000
"""Longer containers contain only data and are not followed."""
_FOLLOWED = ("torch.nn", "torch.optim", "torch.amp", "torch.cuda.amp", "torch.ao")
_LEFT = frozenset(sys.stdlib_module_names - {"collections", "types", "functools", "random"}) | {
    "cgtool", "numpy", "torch",
}  # fmt: skip


def _same_objects(now: Items, items: Items) -> bool:
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
    return bool(data.data_ptr() == saved.data_ptr() and data.shape == saved.shape)


@dataclass
class Place:
    """A place that holds objects and can be restored."""

    items: Callable[[], Items]
    """The objects in it, by key."""
    put: Callable[[Items], None]
    """Sets it to exactly these."""
    same: Callable[[Items, Items], bool] = _same_objects

    def restore(self, items: Items) -> None:
        """Set it to ``items``, unless it still has them."""
        if not self.same(self.items(), items):
            self.put(items)


def _container(value: Any) -> Place:
    """A dictionary (the attributes of an object too), a set, a list or a deque."""

    def items() -> Items:
        if isinstance(value, dict):
            return dict(value)
        return dict.fromkeys(value) if isinstance(value, set) else dict(enumerate(value))

    def put(items: Items) -> None:
        value.clear()
        if isinstance(value, dict | set):
            value.update(items)
        else:
            value.extend(items.values())

    return Place(items, put)


_ABSENT = (AttributeError, KeyError, ValueError)
"""Raised for a slot, a global and a cell that hold nothing."""


def _variables(
    names: tuple[str, ...],
    get: Callable[[str], Any],
    assign: Callable[[str, Any], None],
    delete: Callable[[str], None],
) -> Place:
    """Variables that may be unset: the globals that a function names, slots, a cell."""

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

    return Place(items, put)


def _attributes(owner: Any, names: tuple[str, ...]) -> Place:
    return _variables(
        names,
        partial(getattr, owner),
        partial(object.__setattr__, owner),
        partial(object.__delattr__, owner),
    )


class Reachable:
    """The result of a walk."""

    def __init__(self, workload: Workload) -> None:
        """Follow containers, attributes, closures and globals from the workload's callables and
        arguments, breadth first."""
        self.places: list[Place] = []
        self.tensors: dict[int, tuple[str, torch.Tensor]] = {}
        """By identity: the first path to it."""
        self.random_sources: list[Any] = []
        """Of PyTorch, Python and NumPy."""
        self.arrays: list[Any] = []
        self._seen: dict[int, Any] = {}
        waiting: deque[tuple[str, Any]] = deque()
        for part in workload.parts:
            waiting += part.modules.items()
            waiting += ("", part.function), ("argument", part.args)
            waiting.append(("argument", dict(part.kwargs)))
        while waiting:
            waiting.extend(self._visit(*waiting.popleft()))
        self._seen.clear()

    def layout(self) -> Callable[[], None]:
        """Record which objects are in which places; returns what restores them."""
        layout = [(place, place.items()) for place in self.places]

        def restore() -> None:
            for place, items in layout:
                place.restore(items)

        return restore

    def _visit(self, path: str, value: Any) -> Named:
        """Record an object, and yield its parts."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return
        if id(value) in self._seen or isinstance(value, type | types.ModuleType | types.CodeType):
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            yield from self._tensor(path, value)
        elif isinstance(value, dict | list | deque | set):
            yield from self._items(path, _container(value), len(value))
        elif isinstance(value, tuple | frozenset):
            for index, item in enumerate(list(value)[:_MOST_ITEMS]):
                yield _joined(path, index), item
        elif isinstance(value, types.FunctionType):
            yield from self._function(path, value)
        elif isinstance(value, types.MethodType):
            yield path, value.__self__
            yield path, value.__func__
        elif isinstance(value, partial):
            yield path, value.func
            yield path, value.args
            yield path, value.keywords
        elif isinstance(value, types.CellType):
            yield from self._items(path, _attributes(value, ("cell_contents",)))
        else:
            yield from self._object(path, value)

    def _items(self, path: str, place: Place, size: int = 1) -> Named:
        if size > _MOST_ITEMS:
            return
        self.places.append(place)
        for key, value in place.items().items():
            yield _joined(path, key), value
            if isinstance(key, torch.Tensor):
                yield path, key

    def _tensor(self, path: str, tensor: torch.Tensor) -> Named:
        parts = whole_or_parts(tensor)
        for suffix, part in parts:
            if part is tensor:
                self.tensors[id(tensor)] = path, tensor
            else:
                yield f"{path}{suffix}", part
        # Attributes of the tensor object; those of a wrapper can be all that it wraps.
        yield path, vars(tensor)
        for hooks in TENSOR_HOOKS:
            yield f"hook of {path}", getattr(tensor, hooks, None)
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if plain and has_shape(tensor) and not tensor.is_meta:
            # ``p.data = q`` replaces the memory of a tensor.
            self.places.append(
                Place(
                    lambda: {"data": tensor.detach()},
                    lambda items: setattr(tensor, "data", items["data"]),
                    _same_memory,
                )
            )
        if tensor.is_leaf and tensor.requires_grad:
            self.places.append(_attributes(tensor, ("grad",)))
            yield f"gradient of {path}", tensor.grad

    def _function(self, path: str, function: types.FunctionType) -> Named:
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._seen[id(cell)] = cell
            place = _attributes(cell, ("cell_contents",))
            self.places.append(place)
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
            yield from self._items(path, _container(own), len(own))
        if not users:
            return
        names = tuple(
            name
            for name in dict.fromkeys(_names(code))
            if not isinstance(function.__globals__.get(name), types.ModuleType | type)
        )
        table = function.__globals__
        self.places.append(
            _variables(names, table.__getitem__, table.__setitem__, table.__delitem__)
        )
        yield from ((name, table[name]) for name in names if name in table)

    def _object(self, path: str, value: Any) -> Named:
        kind = type(value)
        if isinstance(value, torch.Generator | random.Random) or _from_numpy(value, "random"):
            # Numbers of the system have no state, and that of a source of seeds is read-only.
            if not isinstance(value, random.SystemRandom) and kind.__name__ != "SeedSequence":
                self.random_sources.append(value)
            return
        if _from_numpy(value, "") and hasattr(value, "tobytes") and hasattr(value, "flags"):
            self.arrays.append(value)
            return
        module = kind.__module__
        left = module.partition(".")[0] in _LEFT and not module.startswith(_FOLLOWED)
        if left and not isinstance(value, torch.nn.Module):
            return
        table = getattr(value, "__dict__", None)
        if isinstance(table, dict):
            self._seen[id(table)] = table
            prefix = "" if path in ("", "self") else path
            yield from self._items(prefix, _container(table), len(table))
        # Its descriptor has a slot's real name (``_Class__private``).
        slots = tuple(
            name
            for base in kind.__mro__
            if "__slots__" in vars(base)
            for name, member in vars(base).items()
            if isinstance(member, types.MemberDescriptorType)
        )
        if slots:
            yield from self._items(path, _attributes(value, slots), len(slots))
        # Names in the methods of the class: a cache next to the class, a closure around it.
        for base in kind.__mro__:
            if not _is_users(base):
                continue
            for member in list(vars(base).values()):
                function = (
                    member.__func__ if isinstance(member, staticmethod | classmethod) else member
                )
                if isinstance(function, types.FunctionType):
                    yield path, function


def _is_users(kind: type) -> bool:
    """True for classes of the user's code, False for those of libraries."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names or file is None:
        return kind.__module__ in ("__main__",)
    return "-packages/" not in file and kind.__module__.partition(".")[0] not in ("torch", "cgtool")


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
