"""One step from an object of the user's to what is inside it: into containers, attributes, closures
and the globals that a function names."""

from __future__ import annotations

import dis
import enum
import gc
import io
import itertools
import logging
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, cast

import torch

from cgtool.observe.frames import SUSPENDED, is_internal, locals_of, suspended_frame
from cgtool.observe.tensors import has_shape, is_leaf, whole_or_parts
from cgtool.program.objects import attribute, is_a
from cgtool.program.places import (
    Place,
    attributes,
    container,
    dotted,
    entries,
    frame_names,
    indexed,
    memory,
    memory_file,
    variables,
    written_file,
)
from cgtool.program.progress import is_iterator
from cgtool.torch_compat.private import MODULE_TABLES, TENSOR_HOOKS, is_functorch_tensor

Named = tuple[str, Any]
"""An object with its path."""

_MOST_ITEMS = 10_000
"""Longer containers contain only data and are not followed."""
_FOLLOWED = (
    *("torch.nn", "torch.optim", "torch.amp", "torch.cuda.amp", "torch.ao"),
    *("torch.distributions", "torch.utils.data"),
)
_NEAR = frozenset(
    ("argparse", "asyncio", "collections", "contextlib", "functools", "logging", "random", "types")
)
_FAR = frozenset(sys.stdlib_module_names - _NEAR)
"""Libraries whose objects are not followed: many are tied to files, sockets and threads, which
cannot be restored with them."""
_LEFT = frozenset(("cgtool", "numpy", "torch"))
_OF_THE_PROCESS = types.FrameType, types.TracebackType, logging.Manager


def inside(path: str, value: Any, places: list[Place] | None = None) -> Iterator[Named]:
    """Objects directly inside an object, with paths. ``places`` gets the places that hold it.

    Without ``places`` only what the code of a function names: not the closures of libraries, and
    not the other methods of its object; and paths as PyTorch names modules (``layers.0``), where
    others are as in the code (``buckets[2]``).
    """
    if is_a(value, torch.Tensor):
        yield from _in_tensor(path, value, places)
    elif is_a(value, dict | list | deque | set):
        place = container(value, is_indexed=places is not None)
        yield from _in_place(path, place, places, len(value))
    elif is_a(value, tuple | frozenset):
        for index, item in enumerate(list(value)[:_MOST_ITEMS]):
            yield dotted(path, index) if places is None else indexed(path, index), item
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
        yield from _in_place(path, container(vars(value)), places, len(vars(value)))
    elif is_a(value, type):
        yield from _in_class(path, value, places)
    elif is_a(value, types.ModuleType):
        if _is_made_by_hand(value):
            yield from _in_place(path, container(vars(value)), places, len(vars(value)))
    elif is_a(value, types.CellType):
        yield from _in_place(path, attributes(value, ("cell_contents",)), places)
    elif places is not None and is_of_objects(value):
        yield from ((path, part) for part in value.ravel().tolist()[:_MOST_ITEMS])
    elif type(value) in _INSIDE:
        yield from _INSIDE[type(value)](path, value, places)
    else:
        yield from _in_object(path, value, places)


def _in_c(path: str, value: Any, _places: list[Place] | None) -> Iterator[Named]:
    """In a cache or an iterator, which cannot be restored, only the contents of the tensors in it:
    not the containers, of which it may have noted how far it is."""
    for inner in gc.get_referents(value):
        yield from ((path, part) for part in _parts(inner) if not is_a(part, type))


def _in_suspended(path: str, value: Any, places: list[Place] | None) -> Iterator[Named]:
    """In a frame: what its names hold."""
    frame = suspended_frame(value)
    if frame is None or is_internal(frame.f_code):
        return
    yield from _in_place(path, frame_names(value, {*locals_of(frame)}), places)
    # A loop keeps its iterator, and a delegating generator the other one, which have no names.
    known = {id(part) for part in locals_of(frame).values()}
    for part in gc.get_referents(value):
        if isinstance(part, (Iterator, *SUSPENDED)) and id(part) not in known:
            yield path, part


_Inside = Callable[[str, Any, list[Place] | None], Iterator[Named]]
_INSIDE: dict[type, _Inside] = {
    weakref.ref: lambda path, value, _places: iter(((path, value()),)),
    io.StringIO: lambda path, value, places: _in_place(path, memory_file(value), places),
    io.BytesIO: lambda path, value, places: _in_place(path, memory_file(value), places),
    type(lru_cache(id)): _in_c,
    **dict.fromkeys(
        (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.FileIO),
        lambda path, value, places: _in_place(path, written_file(value), places),
    ),
    **dict.fromkeys(SUSPENDED, _in_suspended),
}
"""By type: objects of the standard library whose attributes are not what they hold."""


def _in_place(
    path: str, place: Place, places: list[Place] | None, size: int = 1
) -> Iterator[Named]:
    if size > _MOST_ITEMS:
        return
    place.path = path
    if places is not None:
        places.append(place)
    for key, value in place.items().items():
        if type(key) is str and key in MODULE_TABLES and type(value) is dict:
            # ``layers.0.weight``: without the names of a module's own dictionaries.
            yield from _in_place(path, container(value), places, len(value))
        elif key is value or isinstance(key, torch.Tensor):
            yield path, key
            yield path, value
        else:
            yield place.name_of(key), value


def _in_tensor(path: str, tensor: torch.Tensor, places: list[Place] | None) -> Iterator[Named]:
    for suffix, part in whole_or_parts(tensor):
        if part is not tensor:
            yield f"{path}{suffix}", part
    # Attributes of the tensor object; those of a wrapper can be all that it wraps.
    yield from _in_place(path, container(vars(tensor)), places, len(vars(tensor)))
    for hooks in TENSOR_HOOKS:
        yield f"hook of {path}", getattr(tensor, hooks, None)
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if places is not None and plain and has_shape(tensor) and not tensor.is_meta:
        place = memory(tensor)
        place.path = path
        places.append(place)
    # `requires_grad_(False)` keeps the gradient, as in the critic of a GAN.
    if is_leaf(tensor) and (tensor.requires_grad or tensor.grad is not None):
        if places is not None:
            place = attributes(tensor, ("grad",))
            place.path = path
            places.append(place)
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
    cells: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        for _, value in _in_place(name, attributes(cell, ("cell_contents",)), places):
            cells[name] = value
    yield from cells.items()
    arguments = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    if places is not None and (vars(function) or users):
        yield from _in_place(path, container(vars(function)), places, len(vars(function)))
    if users:
        yield from _named_by(function, cells, places)


def _named_by(
    function: types.FunctionType, cells: dict[str, Any], places: list[Place] | None
) -> Iterator[Named]:
    """Objects outside a function that its code names."""
    table = function.__globals__
    tables = {"global": table, "cell": cells}
    names = []
    for kind, name, read in _names_in(function.__code__):
        value = tables[kind].get(name)
        if is_a(value, types.ModuleType):
            yield from _in_file(name, cast(types.ModuleType, value), read, places)
        elif kind == "global":
            names.append(name)
    names = list(dict.fromkeys(names))
    yield from ((name, value) for name in names if is_a(value := table.get(name), type))
    names = [name for name in names if not is_a(table.get(name), type)]
    yield from _in_place("", entries(table, tuple(names)), places)


def _in_file(
    path: str, module: types.ModuleType, read: tuple[str, ...], places: list[Place] | None
) -> Iterator[Named]:
    """Objects that the attributes ``read`` of a module lead to, through the modules of a
    package."""
    value: Any = module
    for number, name in enumerate(read):
        # What a library keeps is not restored: cgtool replaces functions of some while it
        # watches.
        is_users = _is_made_by_hand(value) or _is_users(str(attribute(value, "__name__")), value)
        if name not in vars(value) or not (is_users or (places is None and number == 0)):
            return
        for _, inner in _in_place("", entries(vars(value), (name,)), places):
            path, value = f"{path}.{name}", inner
        if not is_a(value, types.ModuleType):
            yield path, value
            return


_NAMING = {
    "LOAD_GLOBAL": "global",
    "LOAD_NAME": "global",
    "STORE_GLOBAL": "global",
    "DELETE_GLOBAL": "global",
    "LOAD_DEREF": "cell",
}
_NAMING_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")


@lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """(``global`` or ``cell``, a name, the attributes of it that are read next), nested functions
    included."""
    names: dict[tuple[str, str, tuple[str, ...]], None] = {}
    # `settings.calls += 1` copies `settings` before it reads the attribute.
    instructions = [each for each in dis.get_instructions(code) if each.opname != "COPY"]
    for number, this in enumerate(instructions):
        if (kind := _NAMING.get(this.opname)) is not None:
            following = itertools.takewhile(
                lambda each: each.opname in _NAMING_ATTRIBUTES, instructions[number + 1 :]
            )
            names[kind, this.argval, tuple(each.argval for each in following)] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= dict.fromkeys(_names_in(constant))
    return tuple(names)


def _in_object(path: str, value: Any, places: list[Place] | None) -> Iterator[Named]:
    kind = type(value)
    is_module = issubclass(kind, torch.nn.Module)
    library = _library(value)
    followed = places is not None and kind.__module__.startswith(_FOLLOWED)
    if (library in _LEFT and not (followed or is_module)) or isinstance(value, _OF_THE_PROCESS):
        return
    if library in _FAR and kind is not threading.local:
        if places is not None and is_iterator(value):
            yield from _in_c(path, value, places)
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


def _library(value: Any) -> str:
    # A metaclass in C may have a descriptor there.
    return str(type(value).__module__).partition(".")[0]


def _parts(value: Any) -> list[Any]:
    """The things in a container, which stays as it is; anything else itself."""
    if type(value) not in (dict, list, tuple, set, deque):
        return [value]
    return list(value.values() if type(value) is dict else value)[:_MOST_ITEMS]


def _in_class(path: str, kind: type, places: list[Place] | None) -> Iterator[Named]:
    """Values that a class of the user's keeps for all its objects: a counter, a registry."""
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
            names,
            vars(kind).__getitem__,
            partial(type.__setattr__, kind),
            partial(_delete, kind),
            kind,
        )
        yield from _in_place(path or kind.__qualname__, held, places)


def _delete(kind: type, name: str) -> None:
    type.__delattr__(kind, name)


def is_of_objects(value: Any) -> bool:
    """Whether it is an array of NumPy whose elements are objects."""
    is_array = type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"
    return is_array and bool(value.dtype.hasobject)


def _is_made_by_hand(module: types.ModuleType) -> bool:
    """Whether a module is of no file, and not of the interpreter."""
    parts = ("__spec__", "__file__", "__loader__")
    return type(module) is types.ModuleType and not any(vars(module).get(each) for each in parts)


def _is_users(name: str, module: types.ModuleType | None) -> bool:
    """True for a module of the user's code, False for those of libraries."""
    file = getattr(module, "__file__", None)
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names or file is None:
        return name == "__main__"
    return "-packages/" not in file and package not in ("torch", "cgtool")


def is_data(value: Any) -> bool:
    """Whether there is nothing to find in it, or it is of no use: a wrapper of functorch that has
    outlived its transform, a weak proxy of an object that is gone."""
    return (
        type(value) in (type(None), bool, int, float, complex, str, bytes)
        or is_a(value, types.CodeType)
        or (type(value) is torch.Tensor and is_functorch_tensor(value))
        or _is_gone(value)
    )


def _is_gone(value: Any) -> bool:
    """Whether it is a weak proxy of an object that is gone: even `isinstance` raises for it."""
    try:
        return type(value) in weakref.ProxyTypes and value.__repr__.__self__ is None
    except (ReferenceError, AttributeError):
        return True
