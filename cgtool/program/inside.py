"""One step from an object of the user's to what is inside it: into containers, attributes, closures
and the globals that a function names."""

from __future__ import annotations

import concurrent.futures
import contextvars
import dis
import enum
import gc
import itertools
import queue
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch

from cgtool.observe.frames import SUSPENDED, is_internal, locals_of, suspended_frame
from cgtool.observe.suspended import names_assigned_later
from cgtool.observe.tensors import has_shape, whole_or_parts
from cgtool.program.objects import attribute, is_a
from cgtool.program.places import (
    Place,
    attributes,
    container,
    entries,
    memory,
    variables,
    weak_container,
)
from cgtool.torch_compat.private import MODULE_TABLES, TENSOR_HOOKS, is_functorch_tensor

Named = tuple[str, Any]
"""An object with its path."""

_MOST_ITEMS = 10_000
"""Longer containers contain only data and are not followed."""
_FOLLOWED = ("torch.nn", "torch.optim", "torch.amp", "torch.cuda.amp", "torch.ao")
_FOLLOWED_OF_STDLIB = {"argparse", "collections", "types", "functools", "random"}
_LEFT = frozenset(sys.stdlib_module_names - _FOLLOWED_OF_STDLIB) | {"cgtool", "numpy", "torch"}


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
    place = weak_container(value)
    yield from _in_place(path, place, places, len(value))
    yield from ((path, key) for key in place.items())


def _in_variable(
    path: str, variable: contextvars.ContextVar[Any], places: list[Place] | None
) -> Iterator[Named]:
    place = variables(
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
        held = variables(
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


def is_data(value: Any) -> bool:
    """Whether there is nothing to find in it, or it is of no use: a wrapper of functorch that has
    outlived its transform."""
    return (
        type(value) in (type(None), bool, int, float, complex, str, bytes)
        or is_a(value, types.ModuleType | types.CodeType)
        or (type(value) is torch.Tensor and is_functorch_tensor(value))
    )
