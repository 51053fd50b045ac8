"""Where the user wrote a thing, and what the user calls it: for display only."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cgtool.observe.frames import is_internal
from cgtool.program.calling import real_module
from cgtool.program.guarded_access import attribute, is_a, type_name

Place = tuple[str | None, int | None]


def unwrapped(value: Any) -> Any:
    """The function behind partials, bound methods and decorators that say what they wrap."""
    seen: set[int] = set()
    while id(value) not in seen:
        seen.add(id(value))
        if is_a(value, functools.partial):
            value = value.func
        elif is_a(value, types.MethodType):
            value = value.__func__
        else:
            value = attribute(value, "__wrapped__", value)
    return value


def place_of(value: Any, module: ModuleType, name: str) -> Place:
    """File and line of a function or class of the user's; for other objects, the line of the
    user's module that binds the name."""
    target = unwrapped(value)
    code = attribute(target, "__code__")
    if is_a(code, types.CodeType) and not is_internal(code):
        return code.co_filename, code.co_firstlineno
    if is_a(target, type):
        try:
            return inspect.getsourcefile(target), max(1, inspect.getsourcelines(target)[1])
        except (OSError, TypeError):
            pass
    file = attribute(module, "__file__")
    return file, _binding_line(file, name.partition(".")[0]) if file else None


def _binding_line(file: str, name: str) -> int | None:
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
    ]
    return min(lines, default=None)


def _returns(function: ast.AST) -> Iterator[ast.Return]:
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.Return):
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield from _returns(child)


def returned_names(factory: Any, count: int) -> list[str] | None:
    """The variables in ``return (generator, discriminator), ...``, if it is written so."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(unwrapped(factory))))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None
    returns = [one.value for one in _returns(tree.body[0])] if tree.body else []
    if len(returns) != 1 or not isinstance(returns[0], ast.Tuple | ast.List):
        return None
    first = returns[0].elts[0] if returns[0].elts else None
    if not isinstance(first, ast.Tuple | ast.List) or len(first.elts) != count:
        return None
    names = [one.id for one in first.elts if isinstance(one, ast.Name)]
    return names if len(set(names)) == count else None


_LONGEST = 200
"""Characters of a name: one that is longer is generated, and fills the screen."""


def name_of(function: Any) -> str:
    """``TransformerBlock`` for a module, a function's own name, ``lambda``."""
    if is_a(function, torch.nn.Module):
        return type_name(real_module(function))
    if is_a(function, functools.partial):
        return name_of(function.func)
    name = attribute(function, "__name__")
    if not is_a(name, str) or not name:
        return type_name(function)
    return "lambda" if name == "<lambda>" else name[:_LONGEST]


def unique(names: list[str]) -> list[str]:
    """Numbered where two are equal: ``Linear 0``, ``Linear 1``."""
    return [
        f"{name} {names[:index].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]
