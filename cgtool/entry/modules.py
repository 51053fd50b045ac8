"""The ``nn.Module`` objects that a plain function runs: closed over, bound, or global."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

Module = torch.nn.Module


def _members(value: Any, name: str, depth: int) -> Iterator[tuple[str, Module]]:
    if isinstance(value, Module):
        yield name, value
    elif depth > 0:
        if isinstance(value, dict):
            for key, one in value.items():
                yield from _members(one, f"{name}.{key}", depth - 1)
        elif isinstance(value, list | tuple):
            for index, one in enumerate(value):
                yield from _members(one, f"{name}.{index}", depth - 1)
        elif isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            yield from _of_function(value, depth - 1)
        elif getattr(type(value), "__module__", "builtins") not in ("builtins", "torch"):
            for key, one in getattr(value, "__dict__", {}).items():
                if isinstance(one, Module):
                    yield f"{name}.{key}".removeprefix("self."), one


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _of_function(function: Any, depth: int) -> Iterator[tuple[str, Module]]:
    if isinstance(function, functools.partial):
        for index, value in enumerate(function.args):
            yield from _members(value, str(index), depth)
        for key, value in function.keywords.items():
            yield from _members(value, key, depth)
        yield from _of_function(function.func, depth)
        return
    if isinstance(function, types.MethodType):
        yield from _members(function.__self__, "self", max(1, depth))
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        call = vars(type(function)).get("__call__")
        if isinstance(call, types.FunctionType):
            yield from _members(function, "self", max(1, depth))
            function = call
        else:
            return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        yield from _members(value, name, depth)
    for value in function.__defaults__ or ():
        yield from _members(value, "default", depth)
    for name in _names_in(function.__code__):
        if name in function.__globals__:
            yield from _members(function.__globals__[name], name, depth)


def used_by(function: Callable[..., Any]) -> dict[str, Module]:
    """Modules that ``function`` can reach by name, outermost owners only, by variable name."""
    if isinstance(function, Module):
        return {"": function}
    found: dict[str, Module] = {}
    seen: set[int] = set()
    for name, module in _of_function(function, 2):
        if id(module) not in seen:
            seen.add(id(module))
            unique = name
            while unique in found:
                unique += "'"
            found[unique] = module
    inner = {
        id(child) for module in found.values() for child in module.modules() if child is not module
    }
    return {name: module for name, module in found.items() if id(module) not in inner}
