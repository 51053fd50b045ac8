"""What a plain function can reach by name: modules, optimizers and tensors that it closes over,
is bound to, has as defaults, or loads from its globals."""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from cgtool.observe.frames import is_internal
from cgtool.program.guarded_access import attribute, is_a

Module = torch.nn.Module
_DEPTH = 3
"""Function, helper function that it calls, and a container or an object in either."""
_MANY = 1000
"""Containers beyond this hold data, not the parts of a model."""


@dataclass
class Reach:
    """By the name that the user's code has for them."""

    modules: dict[str, Module] = field(default_factory=dict)
    """Outermost owners only. ``{"": module}`` when the function is a module, or bound to one."""
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


def _keep(table: dict[str, Any], name: str, value: Any) -> None:
    while name in table:
        name += "'"
    table[name] = value


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


def _loaded_globals(code: types.CodeType) -> Iterator[tuple[str, str | None]]:
    """(global, the attribute of it that is read next or None), nested functions included."""
    waiting: str | None = None
    for one in _instructions(code):
        if waiting is not None:
            is_attribute = one.opname in ("LOAD_ATTR", "LOAD_METHOD")
            yield waiting, str(one.argval) if is_attribute else None
            waiting = None
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            waiting = str(one.argval)


def _is_users(function: types.FunctionType) -> bool:
    file = function.__code__.co_filename
    return not is_internal(function.__code__) and "-packages/" not in file


class _Walk:
    def __init__(self) -> None:
        self.found = Reach()
        self._seen: set[int] = set()

    def value(self, value: Any, name: str, depth: int) -> None:
        if is_a(value, Module | torch.optim.Optimizer | torch.Tensor):
            if id(value) in self._seen:
                return
            self._seen.add(id(value))
            if is_a(value, Module):
                _keep(self.found.modules, name, value)
            elif is_a(value, torch.Tensor):
                _keep(self.found.tensors, name, value)
            else:
                _keep(self.found.optimizers, name, value)
        elif depth > 0:
            # An object of the user's that will not be looked into has nothing that can be named.
            with contextlib.suppress(Exception):
                self._inside(value, name, depth - 1)

    def _inside(self, value: Any, name: str, depth: int) -> None:
        if is_a(value, dict):
            if len(value) <= _MANY:
                for key, one in list(value.items()):
                    self.value(one, f"{name}.{key}", depth)
        elif is_a(value, list | tuple):
            if len(value) <= _MANY:
                for index, one in enumerate(value):
                    self.value(one, f"{name}.{index}", depth)
        elif is_a(value, types.FunctionType | types.MethodType | functools.partial):
            self.function(value, depth)
        elif not is_a(value, type | types.ModuleType | types.BuiltinFunctionType):
            self._attributes(value, name, depth)

    def _attributes(self, value: Any, name: str, depth: int) -> None:
        kind = type(value).__module__.partition(".")[0]
        if kind in ("builtins", "torch", "numpy"):
            return
        attributes = attribute(value, "__dict__")
        if isinstance(attributes, dict) and len(attributes) <= _MANY:
            for key, one in list(attributes.items()):
                self.value(one, f"{name}.{key}".removeprefix("self."), depth)

    def function(self, function: Any, depth: int) -> None:
        if is_a(function, functools.partial):
            for index, one in enumerate(function.args):
                self.value(one, f"{index}", depth)
            for key, one in function.keywords.items():
                self.value(one, key, depth)
            self.function(function.func, depth)
        elif is_a(function, types.MethodType):
            self.value(function.__self__, "self", depth + 1)
            self.function(function.__func__, depth)
        elif is_a(function, types.FunctionType):
            if id(function) in self._seen:
                return
            self._seen.add(id(function))
            if _is_users(function):
                self._variables(function, depth)
            # torch.compile, torch.no_grad and functools.wraps say what they wrap.
            inner = attribute(function, "__wrapped__")
            if inner is not None:
                self.function(inner, depth)
        elif is_a(function, Module):
            self.value(function, "", depth)
        elif callable(function) and not is_a(function, type | types.BuiltinFunctionType):
            self._attributes(function, "self", depth + 1)
            call = getattr(type(function), "__call__", None)  # noqa: B004
            if isinstance(call, types.FunctionType):
                self.function(call, depth)

    def _variables(self, function: types.FunctionType, depth: int) -> None:
        for name, value in _closed_over(function):
            self.value(value, name, depth)
        for name, value in _defaults(function):
            self.value(value, name, depth)
        for name, read in _loaded_globals(function.__code__):
            value = function.__globals__.get(name)
            if is_a(value, types.ModuleType):
                if read is not None:
                    self.value(vars(value).get(read), f"{name}.{read}", min(depth, 1))
            elif value is not None:
                self.value(value, name, depth)


def _closed_over(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a variable that is not bound yet
            continue


def _defaults(function: types.FunctionType) -> Iterable[tuple[str, Any]]:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _bound_module(function: Any) -> Module | None:
    """The module that a partial or a bound method runs."""
    while is_a(function, functools.partial):
        function = function.func
    if is_a(function, types.MethodType):
        function = function.__self__
    return function if is_a(function, Module) else None


def reach(function: Callable[..., Any]) -> Reach:
    """What ``function`` can reach by name; an object that has two names keeps the first."""
    if is_a(function, Module):
        return Reach(modules={"": cast(Module, function)})
    walk = _Walk()
    bound = _bound_module(function)
    if bound is not None:
        walk.value(bound, "", 0)
    walk.function(function, _DEPTH)
    found = walk.found
    inner = {
        id(child)
        for module in found.modules.values()
        for child in module.modules()
        if child is not module
    }
    found.modules = {
        name: module for name, module in found.modules.items() if id(module) not in inner
    }
    owned = {
        id(tensor)
        for module in found.modules.values()
        for tensor in (*module.parameters(), *module.buffers())
    }
    found.tensors = {
        name: tensor for name, tensor in found.tensors.items() if id(tensor) not in owned
    }
    return found
