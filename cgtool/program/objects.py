"""Inspects the user's objects without trusting them, and finds what a function reaches by name.

Proxies, mocks and lazy objects run code for ``__class__`` and for every attribute, and that code
may raise anything. Then the bare type counts, without the attribute.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import reprlib
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from cgtool.observe.frames import is_internal

_SHORT = 80
_MOST = 10_000
"""Maximum length of a message; nobody reads more of an error."""


def is_a(value: Any, kinds: Any) -> bool:
    """``isinstance``, by the type alone when ``__class__`` raises."""
    try:
        return isinstance(value, kinds)
    except Exception:
        return issubclass(type(value), kinds)


def attribute(value: Any, name: str, default: Any = None) -> Any:
    """``getattr`` with a default for every exception."""
    try:
        return getattr(value, name, default)
    except Exception:
        return default


def type_name(value: Any) -> str:
    """The name of the type, whatever its metaclass returns."""
    return str(type.__dict__["__name__"].__get__(type(value)))


def text_of(error: BaseException) -> str:
    """``str``, bounded in length, whatever a ``__str__`` of the user's does."""
    try:
        return str(error)[:_MOST]
    except Exception as other:
        return f"(its message raised {type_name(other)})"


def short(value: Any) -> str:
    """A repr of one short line, whatever the value's own repr does."""
    try:
        text = reprlib.repr(value)
    except Exception:
        text = f"<{type_name(value)} object>"
    text = " ".join(text.split())
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."


# --- reach

_DEPTH = 3
"""The function, a helper function, and a container or an object in either."""
_MANY = 1000
"""Larger containers hold data, not the parts of a model."""


@dataclass
class Reached:
    """By the names in the user's code."""

    modules: dict[str, torch.nn.Module] = field(default_factory=dict)
    """Outermost owners only. ``{"": module}`` when the function is a module, or bound to one."""
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    generators: dict[str, torch.Generator] = field(default_factory=dict)


def _loaded_globals(code: types.CodeType) -> Iterator[tuple[str, str | None]]:
    """(global, the attribute of it that is read next or None), nested functions included."""
    for this, following in itertools.pairwise(dis.get_instructions(code)):
        if this.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            is_attribute = following.opname in ("LOAD_ATTR", "LOAD_METHOD")
            yield str(this.argval), str(following.argval) if is_attribute else None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _loaded_globals(constant)


class _Walk:
    def __init__(self) -> None:
        self.reach = Reached()
        self._seen: set[int] = set()

    def value(self, value: Any, name: str, depth: int) -> None:
        tables: tuple[tuple[Any, dict[str, Any]], ...] = (
            (torch.nn.Module, self.reach.modules),
            (torch.optim.Optimizer, self.reach.optimizers),
            (torch.Tensor, self.reach.tensors),
            (torch.Generator, self.reach.generators),
        )
        table = next((table for kind, table in tables if is_a(value, kind)), None)
        if table is not None:
            if id(value) in self._seen:
                return
            self._seen.add(id(value))
            while name in table:
                name += "'"
            table[name] = value
        elif depth > 0:
            # An object whose attributes raise has no usable names.
            with contextlib.suppress(Exception):
                self._inside(value, name, depth - 1)

    def _inside(self, value: Any, name: str, depth: int) -> None:
        if is_a(value, dict | list | tuple):
            if len(value) <= _MANY:
                items = value.items() if is_a(value, dict) else enumerate(value)
                for key, item in list(items):
                    self.value(item, f"{name}.{key}", depth)
        elif is_a(value, types.FunctionType | types.MethodType | functools.partial):
            self.function(value, depth)
        elif not is_a(value, type | types.ModuleType | types.BuiltinFunctionType):
            self._attributes(value, name, depth)

    def _attributes(self, value: Any, name: str, depth: int) -> None:
        if type(value).__module__.partition(".")[0] in ("builtins", "torch", "numpy"):
            return
        attributes = attribute(value, "__dict__")
        if isinstance(attributes, dict) and len(attributes) <= _MANY:
            for key, item in list(attributes.items()):
                self.value(item, f"{name}.{key}".removeprefix("self."), depth)

    def function(self, function: Any, depth: int) -> None:
        if is_a(function, functools.partial):
            for index, argument in enumerate(function.args):
                self.value(argument, f"{index}", depth)
            for key, argument in function.keywords.items():
                self.value(argument, key, depth)
            self.function(function.func, depth)
        elif is_a(function, types.MethodType):
            self.value(function.__self__, "self", depth + 1)
            self.function(function.__func__, depth)
        elif is_a(function, types.FunctionType):
            if id(function) in self._seen:
                return
            self._seen.add(id(function))
            code = function.__code__
            if not is_internal(code) and "-packages/" not in code.co_filename:
                self._variables(function, depth)
            # torch.compile, torch.no_grad and functools.wraps set __wrapped__.
            inner = attribute(function, "__wrapped__")
            if inner is not None:
                self.function(inner, depth)
        elif is_a(function, torch.nn.Module):
            self.value(function, "", depth)
        elif callable(function) and not is_a(function, type | types.BuiltinFunctionType):
            self._attributes(function, "self", depth + 1)
            call = getattr(type(function), "__call__", None)  # noqa: B004
            if isinstance(call, types.FunctionType):
                self.function(call, depth)

    def _variables(self, function: types.FunctionType, depth: int) -> None:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a variable that is not bound yet
                self.value(cell.cell_contents, name, depth)
        defaults = function.__defaults__ or ()
        with_default = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        for name, value in zip(with_default, defaults, strict=True):
            self.value(value, name, depth)
        for name, value in (function.__kwdefaults__ or {}).items():
            self.value(value, name, depth)
        for name, read in _loaded_globals(code):
            value = function.__globals__.get(name)
            if is_a(value, types.ModuleType):
                if read is not None:
                    self.value(vars(value).get(read), f"{name}.{read}", min(depth, 1))
            elif value is not None:
                self.value(value, name, depth)


def reach(function: Callable[..., Any]) -> Reached:
    """What ``function`` can reach by name; an object with two names has the first."""
    if is_a(function, torch.nn.Module):
        return Reached(modules={"": cast(torch.nn.Module, function)})
    walk = _Walk()
    bound: Any = function
    while is_a(bound, functools.partial):
        bound = bound.func
    bound = bound.__self__ if is_a(bound, types.MethodType) else bound
    if is_a(bound, torch.nn.Module):
        walk.value(bound, "", 0)
    walk.function(function, _DEPTH)
    reached = walk.reach
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
    return reached
