"""The modules, optimizers and tensors that a function can reach by name: in its closure, its bound
object, its defaults and its globals."""

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
"""The function, a helper function, and a container or an object in either."""
_MANY = 1000
"""Larger containers hold data, not the parts of a model."""


@dataclass
class Reach:
    """By the names in the user's code."""

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
    name: str | None = None
    for instruction in _instructions(code):
        if name is not None:
            is_attribute = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")
            yield name, str(instruction.argval) if is_attribute else None
            name = None
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            name = str(instruction.argval)


def _is_users(function: types.FunctionType) -> bool:
    file = function.__code__.co_filename
    return not is_internal(function.__code__) and "-packages/" not in file


class _Walk:
    def __init__(self) -> None:
        self.reach = Reach()
        self._seen: set[int] = set()

    def value(self, value: Any, name: str, depth: int) -> None:
        if is_a(value, Module | torch.optim.Optimizer | torch.Tensor):
            if id(value) in self._seen:
                return
            self._seen.add(id(value))
            if is_a(value, Module):
                _keep(self.reach.modules, name, value)
            elif is_a(value, torch.Tensor):
                _keep(self.reach.tensors, name, value)
            else:
                _keep(self.reach.optimizers, name, value)
        elif depth > 0:
            # An object whose attributes raise has nothing that can be named.
            with contextlib.suppress(Exception):
                self._inside(value, name, depth - 1)

    def _inside(self, value: Any, name: str, depth: int) -> None:
        if is_a(value, dict):
            if len(value) <= _MANY:
                for key, item in list(value.items()):
                    self.value(item, f"{name}.{key}", depth)
        elif is_a(value, list | tuple):
            if len(value) <= _MANY:
                for index, item in enumerate(value):
                    self.value(item, f"{name}.{index}", depth)
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
            if _is_users(function):
                self._variables(function, depth)
            # torch.compile, torch.no_grad and functools.wraps set __wrapped__.
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
    """What ``function`` can reach by name; an object with two names has the first."""
    if is_a(function, Module):
        return Reach(modules={"": cast(Module, function)})
    walk = _Walk()
    bound = _bound_module(function)
    if bound is not None:
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
