"""What the user's code can reach: one step from an object to what is inside it, and two walks.

``inside`` is the step: into containers, attributes, closures and the globals that a function names.
``reach`` walks a few steps and stops at modules, optimizers, tensors and generators: what a summary
names, close to the function. ``Reachable`` walks as far as it goes, because a value that it misses
is not restored between two runs that must begin in the same state.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import dis
import enum
import gc
import itertools
import queue
import random
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, cast

import torch

from cgtool.observe.frames import SUSPENDED, is_internal, locals_of, suspended_frame
from cgtool.observe.suspended import names_assigned_later
from cgtool.observe.tensors import has_shape, whole_or_parts
from cgtool.program.objects import attribute, is_a
from cgtool.torch_compat.private import MODULE_TABLES, TENSOR_HOOKS, is_functorch_tensor
from cgtool.torch_compat.storages import storage_bytes

Named = tuple[str, Any]
"""An object with its path."""

_MOST_ITEMS = 10_000
"""Longer containers contain only data and are not followed."""
_FOLLOWED = ("torch.nn", "torch.optim", "torch.amp", "torch.cuda.amp", "torch.ao")
_FOLLOWED_OF_STDLIB = {"argparse", "collections", "types", "functools", "random"}
_LEFT = frozenset(sys.stdlib_module_names - _FOLLOWED_OF_STDLIB) | {"cgtool", "numpy", "torch"}


# --- places that hold objects and can be restored: containers, attributes, globals, tensors

Items = dict[Any, Any]


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
    same = bool(data.data_ptr() == saved.data_ptr() and data.shape == saved.shape)
    return same and now["bytes"] == items["bytes"]


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


def container(value: Any) -> Place:
    """A dictionary (the attributes of an object too), a set, a list or a deque."""

    def items() -> Items:
        if isinstance(value, dict):
            return dict(value)
        return {each: each for each in value} if isinstance(value, set) else dict(enumerate(value))

    def put(items: Items) -> None:
        value.clear()
        if isinstance(value, dict | set):
            value.update(items)
        else:
            value.extend(items.values())

    return Place(items, put)


def _weak_container(value: Any) -> Place:
    """A dictionary with weak keys or values, or a weak set: what lives in it."""

    def items() -> Items:
        is_set = isinstance(value, weakref.WeakSet)
        return {each: each for each in value} if is_set else dict(value.items())

    def put(items: Items) -> None:
        value.clear()
        value.update(items)

    return Place(items, put)


_ABSENT = (AttributeError, LookupError, ValueError)
"""Raised for a slot, a global, a cell and a context variable that hold nothing."""


def _variables(
    names: tuple[str, ...],
    get: Callable[[str], Any],
    assign: Callable[[str, Any], object],
    delete: Callable[[str], object],
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

    return Place(items, put)


def attributes(owner: Any, names: tuple[str, ...]) -> Place:
    """Attributes that may be unset: slots, a cell, a gradient."""
    return _variables(
        names,
        partial(getattr, owner),
        partial(object.__setattr__, owner),
        partial(object.__delattr__, owner),
    )


def entries(table: dict[str, Any], names: tuple[str, ...]) -> Place:
    """Entries of a dictionary that may be absent: the globals that a function names."""
    return _variables(names, table.__getitem__, table.__setitem__, table.__delitem__)


def memory(tensor: torch.Tensor) -> Place:
    """The memory of a tensor, which ``p.data = q`` replaces, and of which
    ``p.untyped_storage().resize_(0)`` frees what is in it."""

    def put(items: Items) -> None:
        tensor.data = items["data"]
        if storage_bytes(tensor) != items["bytes"]:
            tensor.untyped_storage().resize_(items["bytes"])

    return Place(
        lambda: {"data": tensor.detach(), "bytes": storage_bytes(tensor)}, put, _same_memory
    )


# --- one step


def inside(path: str, value: Any, places: list[Place] | None = None) -> Iterator[Named]:
    """What is directly inside an object, with paths. ``places`` gets the places that hold it.

    Without ``places`` only what the code of a function names: not the closures of libraries, and
    not the other methods of its object.
    """
    if is_a(value, torch.Tensor):
        yield from _in_tensor(path, value, places)
    elif is_a(value, dict | list | deque | set):
        yield from _in_place(path, container(value), places, len(value))
    elif is_a(value, tuple | frozenset):
        for index, item in enumerate(list(value)[:_MOST_ITEMS]):
            yield _joined(path, index), item
    elif is_a(value, types.FunctionType):
        yield from _in_function(path, value, places)
    elif is_a(value, types.MethodType):
        yield path, value.__self__
        yield path, value.__func__
    elif is_a(value, types.BuiltinMethodType | types.MethodWrapperType):
        yield path, value.__self__
    elif is_a(value, partial):
        yield path, value.args
        yield path, value.keywords
        yield path, value.func
        yield path, vars(value)
    elif is_a(value, type):
        yield from _in_class(path, value, places)
    elif is_a(value, types.CellType):
        yield from _in_place(path, attributes(value, ("cell_contents",)), places)
    elif type(value) in _INSIDE:
        yield from _INSIDE[type(value)](path, value, places)
    else:
        yield from _in_object(path, value, places)


def _in_weak_container(path: str, value: Any, places: list[Place] | None) -> Iterator[Named]:
    place = _weak_container(value)
    yield from _in_place(path, place, places, len(value))
    yield from ((path, key) for key in place.items())


def _in_variable(
    path: str, variable: contextvars.ContextVar[Any], places: list[Place] | None
) -> Iterator[Named]:
    place = _variables(
        ("value",),
        lambda _: variable.get(),
        lambda _, value: variable.set(value),
        # A context forgets a value only with the token of the call that set it.
        lambda _: None,
    )
    for _, value in _in_place("", place, places):
        yield path, value


def _in_mapping(
    path: str, mapping: types.MappingProxyType[Any, Any], _places: list[Place] | None
) -> Iterator[Named]:
    # Read-only here; it can be that of a class.
    yield from ((_joined(path, key), value) for key, value in mapping.items())


def _in_queue(path: str, value: Any, places: list[Place] | None) -> Iterator[Named]:
    yield from _in_place(path, attributes(value, ("queue", "unfinished_tasks")), places)


def _in_proxy(path: str, value: Any, _places: list[Place] | None) -> Iterator[Named]:
    # A proxy passes on the methods of what it stands for.
    yield path, attribute(attribute(value, "__init__"), "__self__")


def _in_c(path: str, value: Any, _places: list[Place] | None) -> Iterator[Named]:
    """In objects of C that cannot be restored, only the contents of the tensors in them."""
    for inner in gc.get_referents(value):
        parts = inner.values() if type(inner) is dict else (inner,)
        yield from ((path, part) for part in parts)


def _in_suspended(path: str, value: Any, _places: list[Place] | None) -> Iterator[Named]:
    """In a frame that cannot be set back: what its names hold for good. Others would hold what a
    replay does not give them."""
    frame = suspended_frame(value)
    if frame is None or is_internal(frame.f_code):
        return
    rebound = names_assigned_later(frame)
    for name, part in locals_of(frame).items():
        if name not in rebound:
            yield _joined(path, name), part


_Inside = Callable[[str, Any, list[Place] | None], Iterator[Named]]
_INSIDE: dict[type, _Inside] = {
    weakref.WeakKeyDictionary: _in_weak_container,
    weakref.WeakValueDictionary: _in_weak_container,
    weakref.WeakSet: _in_weak_container,
    weakref.ref: lambda path, value, _places: iter(((path, value()),)),
    weakref.ProxyType: _in_proxy,
    weakref.CallableProxyType: _in_proxy,
    contextvars.ContextVar: _in_variable,
    types.MappingProxyType: _in_mapping,
    queue.Queue: _in_queue,
    queue.LifoQueue: _in_queue,
    queue.PriorityQueue: _in_queue,
    queue.SimpleQueue: _in_c,
    type(lru_cache(id)): _in_c,
    **dict.fromkeys(SUSPENDED, _in_suspended),
    concurrent.futures.Future: lambda path, value, places: _in_place(
        path, attributes(value, ("_result",)), places
    ),
}
"""By type: containers of the standard library, whose other objects are left."""


def _in_place(
    path: str, place: Place, places: list[Place] | None, size: int = 1
) -> Iterator[Named]:
    if size > _MOST_ITEMS:
        return
    if places is not None:
        places.append(place)
    for key, value in place.items().items():
        yield path if key is value else _joined(path, key), value
        if isinstance(key, torch.Tensor):
            yield path, key


def _in_tensor(path: str, tensor: torch.Tensor, places: list[Place] | None) -> Iterator[Named]:
    for suffix, part in whole_or_parts(tensor):
        if part is not tensor:
            yield f"{path}{suffix}", part
    # Attributes of the tensor object; those of a wrapper can be all that it wraps.
    yield path, vars(tensor)
    for hooks in TENSOR_HOOKS:
        yield f"hook of {path}", getattr(tensor, hooks, None)
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if places is not None and plain and has_shape(tensor) and not tensor.is_meta:
        places.append(memory(tensor))
    # `requires_grad_(False)` keeps the gradient, as in the critic of a GAN.
    if tensor.is_leaf and (tensor.requires_grad or tensor.grad is not None):
        if places is not None:
            places.append(attributes(tensor, ("grad",)))
        yield f"gradient of {path}", tensor.grad


def _in_function(
    path: str, function: types.FunctionType, places: list[Place] | None
) -> Iterator[Named]:
    code = function.__code__
    users = not is_internal(code) and "-packages/" not in code.co_filename
    # torch.compile, torch.no_grad and functools.wraps set __wrapped__.
    yield path, attribute(function, "__wrapped__")
    if not users and places is None:
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        for _, value in _in_place("", attributes(cell, ("cell_contents",)), places):
            yield name, value
    arguments = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    if places is not None and (vars(function) or users):
        yield from _in_place(path, container(vars(function)), places, len(vars(function)))
    if users:
        yield from _globals_of(function, places)


def _globals_of(function: types.FunctionType, places: list[Place] | None) -> Iterator[Named]:
    table = function.__globals__
    names = []
    for name, read in _globals_in(function.__code__):
        value = table.get(name)
        if not is_a(value, types.ModuleType):
            names.append(name)
        elif read in vars(value) and (
            places is None or _is_users(str(attribute(value, "__name__")), value)
        ):
            # What a library keeps is not restored: cgtool replaces functions of some while it
            # watches.
            held = entries(vars(value), (str(read),))
            for _, inner in _in_place("", held, places):
                yield f"{name}.{read}", inner
    names = list(dict.fromkeys(names))
    yield from ((name, kind) for name in names if is_a(kind := table.get(name), type))
    names = [name for name in names if not is_a(table.get(name), type)]
    yield from _in_place("", entries(table, tuple(names)), places)


_NAMING_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
_NAMING_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")


@lru_cache(maxsize=4096)
def _globals_in(code: types.CodeType) -> tuple[tuple[str, str | None], ...]:
    """(global, the attribute of it that is named next or None), nested functions included."""
    names: dict[tuple[str, str | None], None] = {}
    # `settings.calls += 1` copies `settings` before it reads the attribute.
    instructions = [each for each in dis.get_instructions(code) if each.opname != "COPY"]
    for this, following in itertools.pairwise(instructions):
        if this.opname in _NAMING_GLOBALS:
            is_attribute = following.opname in _NAMING_ATTRIBUTES
            names[str(this.argval), str(following.argval) if is_attribute else None] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= dict.fromkeys(_globals_in(constant))
    return tuple(names)


def _in_object(path: str, value: Any, places: list[Place] | None) -> Iterator[Named]:
    kind = type(value)
    is_module = issubclass(kind, torch.nn.Module)
    library = kind.__module__.partition(".")[0]
    followed = places is not None and kind.__module__.startswith(_FOLLOWED)
    if library in _LEFT and not (followed or is_module or kind is threading.local):
        return
    table = attribute(value, "__dict__")
    if type(table) is dict:
        prefix = "" if path in ("", "self") else path
        yield from _in_place(prefix, container(table), places, len(table))
    # Its descriptor has a slot's real name (``_Class__private``).
    slots = tuple(
        name
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    )
    if slots:
        yield from _in_place(path, attributes(value, slots), places, len(slots))
    if places is None:
        return
    # Names in the methods of the class: a cache next to the class, a closure around it.
    for base in kind.__mro__:
        if not _is_users(base.__module__, sys.modules.get(base.__module__)):
            continue
        yield base.__qualname__, base
        for member in list(vars(base).values()):
            function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if isinstance(function, types.FunctionType):
                yield path, function


def _in_class(path: str, kind: type, places: list[Place] | None) -> Iterator[Named]:
    """What a class of the user's keeps for all its objects: a counter, a registry."""
    if places is None or not _is_users(kind.__module__, sys.modules.get(kind.__module__)):
        return
    names = tuple(
        name
        for name, member in vars(kind).items()
        if not name.startswith("__")
        and not is_a(member, type)
        and attribute(type(member), "__get__") is None
    )
    if names and not issubclass(kind, enum.Enum):
        held = _variables(
            names, vars(kind).__getitem__, partial(type.__setattr__, kind), partial(_delete, kind)
        )
        yield from _in_place(path or kind.__qualname__, held, places)


def _delete(kind: type, name: str) -> None:
    type.__delattr__(kind, name)


def _is_users(name: str, module: types.ModuleType | None) -> bool:
    """True for a module of the user's code, False for those of libraries."""
    file = getattr(module, "__file__", None)
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names or file is None:
        return name == "__main__"
    return "-packages/" not in file and package not in ("torch", "cgtool")


_SHORT = frozenset(MODULE_TABLES)


def _joined(path: str, key: Any) -> str:
    """``layers.0.weight``: without the names of a module's own dictionaries."""
    if isinstance(key, torch.Tensor) or key in _SHORT:
        return path
    return f"{path}.{key}" if path else str(key)


def _is_data(value: Any) -> bool:
    """Whether there is nothing to find in it, or it is of no use: a wrapper of functorch that has
    outlived its transform."""
    return (
        type(value) in (type(None), bool, int, float, complex, str, bytes)
        or is_a(value, types.ModuleType | types.CodeType)
        or (type(value) is torch.Tensor and is_functorch_tensor(value))
    )


# --- all of it


class Reachable:
    """Everything that can be reached from objects, breadth first."""

    def __init__(self, roots: Iterable[Named]) -> None:
        self._places: list[Place] = []
        self.tensors: dict[int, tuple[str, torch.Tensor]] = {}
        """By identity: the first path to it."""
        self.random_sources: list[Any] = []
        """Of PyTorch, Python and NumPy."""
        self.arrays: list[Any] = []
        waiting = deque(roots)
        seen: dict[int, Any] = {}
        while waiting:
            path, value = waiting.popleft()
            if not _is_data(value) and id(value) not in seen:
                seen[id(value)] = value
                if not self._record(path, value):
                    waiting.extend(inside(path, value, self._places))

    def layout(self) -> Callable[[], None]:
        """Record which objects are in which places; returns what restores them."""
        layout = [(place, place.items()) for place in self._places]

        def restore() -> None:
            for place, items in layout:
                place.restore(items)

        return restore

    def _record(self, path: str, value: Any) -> bool:
        """Keep what has contents of its own; True if there is nothing inside it."""
        module = type(value).__module__
        if isinstance(value, torch.Tensor):
            if any(part is value for _, part in whole_or_parts(value)):
                self.tensors[id(value)] = path, value
        elif isinstance(value, torch.Generator | random.Random) or module.startswith(
            "numpy.random"
        ):
            # Numbers of the system have no state, and that of a source of seeds is read-only.
            fixed = isinstance(value, random.SystemRandom) or type(value).__name__ == "SeedSequence"
            if not fixed:
                self.random_sources.append(value)
            return True
        elif module == "numpy" and hasattr(value, "tobytes") and hasattr(value, "flags"):
            # Scalars of NumPy have most attributes of arrays, and cannot be changed.
            if hasattr(value, "ctypes") and value.flags.writeable:
                self.arrays.append(value)
            return True
        return False


# --- what is close


_STEPS = 3
"""The function, a helper function, and a container or an object in either."""


@dataclass
class Reached:
    """By the names in the user's code."""

    modules: dict[str, torch.nn.Module] = field(default_factory=dict)
    """Outermost owners only. ``{"": module}`` when the function is a module, or bound to one."""
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    generators: dict[str, torch.Generator] = field(default_factory=dict)


def reach(function: Callable[..., Any]) -> Reached:
    """What ``function`` can reach by name; an object with two names has the first."""
    if is_a(function, torch.nn.Module):
        return Reached(modules={"": cast(torch.nn.Module, function)})
    reached = Reached()
    tables: tuple[tuple[Any, dict[str, Any]], ...] = (
        (torch.nn.Module, reached.modules),
        (torch.optim.Optimizer, reached.optimizers),
        (torch.Tensor, reached.tensors),
        (torch.Generator, reached.generators),
    )
    waiting: deque[tuple[str, Any, int]] = deque([("", function, _STEPS + 1)])
    call = getattr(type(function), "__call__", None)  # noqa: B004
    if isinstance(call, types.FunctionType):
        waiting.append(("", call, _STEPS + 1))
    seen: dict[int, Any] = {}
    while waiting:
        name, value, steps = waiting.popleft()
        if id(value) in seen or _is_data(value):
            continue
        seen[id(value)] = value
        table = next((table for kind, table in tables if is_a(value, kind)), None)
        if table is not None:
            while name in table:
                name += "'"
            table[name] = value
        elif steps:
            # An object whose attributes raise has no usable names.
            with contextlib.suppress(Exception):
                wrapped = attribute(value, "__wrapped__")
                is_call = is_a(value, types.MethodType | partial)
                waiting.extend(
                    (inner, part, steps - (not is_call and part is not wrapped))
                    for inner, part in inside(name, value)
                )
    _leave_out_owned(reached)
    return reached


def _leave_out_owned(reached: Reached) -> None:
    """Modules of other modules, and tensors of modules."""
    inner = {
        id(child)
        for module in reached.modules.values()
        for child in module.modules()
        if child is not module
    }
    reached.modules = {
        name: module for name, module in reached.modules.items() if id(module) not in inner
    }
    owned = {
        id(tensor)
        for module in reached.modules.values()
        for tensor in (*module.parameters(), *module.buffers())
    }
    reached.tensors = {
        name: tensor for name, tensor in reached.tensors.items() if id(tensor) not in owned
    }
