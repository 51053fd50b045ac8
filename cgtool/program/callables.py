"""A callable of the user's: its signature, its name, and where it is written."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cgtool.observe.frames import is_internal
from cgtool.program.guarded_access import attribute, is_a, type_name
from cgtool.torch_compat.private import COMPILED_MODULE

_DEVICE_LIKE = re.compile(r"\b(str|device|Any|DeviceLikeType)\b")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def real_module(module: torch.nn.Module) -> torch.nn.Module:
    """The module behind torch.compile, DataParallel and DistributedDataParallel, which take
    anything and pass it on."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while True:
        inner = attribute(module, COMPILED_MODULE)
        if inner is None and is_a(module, wrappers):
            inner = module.module
        if not is_a(inner, torch.nn.Module):
            return module
        module = inner


def _target(value: Any) -> Any:
    return attribute(real_module(value), "forward") if is_a(value, torch.nn.Module) else value


def signature_of(value: Any, *, follow_wrapped: bool = True) -> inspect.Signature | None:
    """The signature, through decorators; a module's is that of its ``forward``. None for builtins
    that have none."""
    target = _target(value)
    call = attribute(type(target), "__call__")
    tried: list[Any] = [target]
    if is_a(call, types.FunctionType):
        tried.append(types.MethodType(call, target))
    for one in tried:
        try:
            return inspect.signature(one, follow_wrapped=follow_wrapped)
        except Exception:  # attributes of the user's are read
            continue
    return None


def required(value: Any) -> list[str]:
    """Names of the parameters that must be given."""
    signature = signature_of(value)
    if signature is None:
        return []
    return [
        one.name
        for one in signature.parameters.values()
        if one.default is inspect.Parameter.empty and one.kind not in _MANY
    ]


def shown(value: Any) -> str:
    """``(x, y, scale=1)``: for messages."""
    signature = signature_of(value)
    if signature is None:
        return "(...)"
    bare = [
        one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()
    ]
    text = str(inspect.Signature(bare))
    return text if len(text) <= 200 else "(...)"


def misfit(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Why ``value`` does not take these arguments, or None.

    Decorators are not looked through: one that adds an argument is right to be called without.
    """
    signature = signature_of(value, follow_wrapped=False)
    if signature is None:
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def names_device(value: Any) -> bool:
    """True when a parameter is called ``device``: a factory."""
    signature = signature_of(value)
    return signature is not None and "device" in signature.parameters


def factory_call(
    value: Any, device: str
) -> tuple[tuple[Any, ...], dict[str, Any], str | None] | None:
    """Arguments that call ``value`` as a factory, and the parameter that was taken for the device;
    None when it needs more than a device.

    The device goes to a parameter of that name, or to the only one that is required.
    """
    signature = signature_of(value)
    if signature is None:
        return None
    needed = required(value)
    named = signature.parameters.get("device")
    if named is not None and named.kind not in _MANY:
        if needed not in ([], ["device"]):
            return None
        if named.kind is not inspect.Parameter.POSITIONAL_ONLY:
            return (), {"device": device}, "device"
        before = list(signature.parameters).index("device")
        return ((device,), {}, "device") if before == 0 else None
    if not needed:
        return (), {}, None
    if len(needed) > 1:
        return None
    only = signature.parameters[needed[0]]
    if only.kind not in _POSITIONAL or not _takes_a_device(only):
        return None
    return (device,), {}, only.name


def _takes_a_device(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return True
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _DEVICE_LIKE.search(text) is not None


def cannot_run(value: Callable[..., Any]) -> str | None:
    """``an async function`` and the like: callables whose call does not do their work."""
    call = attribute(type(value), "__call__")
    for target in (value, call):
        # Anything but a plain function is asked through its type's __call__.
        if not is_a(target, _FUNCTIONS):
            continue
        if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
            return "an async function"
        if inspect.isgeneratorfunction(target):
            return "a generator function"
    return None


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
