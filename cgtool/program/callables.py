"""A callable of the user's: its signature, its name, and where it is written."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from cgtool.observe.frames import is_internal
from cgtool.observe.source import tree_of
from cgtool.program.objects import attribute, is_a, type_name
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.private import COMPILED_MODULE

_DEVICE_LIKE = re.compile(r"\b(str|device|Any|DeviceLikeType)\b")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def real_module(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside torch.compile, DataParallel and DistributedDataParallel, whose own
    ``forward`` takes any arguments."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while True:
        inner = attribute(module, COMPILED_MODULE)
        if inner is None and is_a(module, wrappers):
            inner = module.module
        if not is_a(inner, torch.nn.Module):
            return module
        module = inner


def signature_of(value: Any, *, follow_wrapped: bool = True) -> inspect.Signature | None:
    """The signature, through decorators; a module's is that of its ``forward``. None for builtins
    that have none."""
    if is_a(value, torch.nn.Module):
        value = attribute(real_module(value), "forward")
    candidates = [value]
    call = attribute(type(value), "__call__")
    if is_a(call, types.FunctionType):
        candidates.append(types.MethodType(call, value))
    for candidate in candidates:
        try:
            return inspect.signature(candidate, follow_wrapped=follow_wrapped)
        except Exception:  # reads attributes of the user's object
            continue
    return None


def required(value: Any) -> list[str]:
    """Names of the parameters that must be given."""
    signature = signature_of(value)
    if signature is None:
        return []
    return [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIADIC
    ]


def signature_text(value: Any) -> str:
    """``(x, y, scale=1)``, for messages."""
    signature = signature_of(value)
    if signature is None:
        return "(...)"
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    text = str(inspect.Signature(parameters))
    return text if len(text) <= 200 else "(...)"


def mismatch(value: Any, args: Args, kwargs: Kwargs) -> str | None:
    """Why ``value`` does not take these arguments, or None.

    By the outermost decorator's signature: it may add arguments of its own.
    """
    signature = signature_of(value, follow_wrapped=False)
    if signature is None:
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def factory_call(
    value: Any, device: str
) -> tuple[tuple[Any, ...], dict[str, Any], str | None] | None:
    """(args, kwargs, name of the parameter that gets the device) to call ``value`` as a factory;
    None when it requires more than a device.

    The device goes to the parameter ``device``, or to the only required parameter.
    """
    signature = signature_of(value)
    if signature is None:
        return None
    names = required(value)
    named = signature.parameters.get("device")
    if named is not None and named.kind not in _VARIADIC:
        if names not in ([], ["device"]):
            return None
        if named.kind is not inspect.Parameter.POSITIONAL_ONLY:
            return (), {"device": device}, "device"
        before = list(signature.parameters).index("device")
        return ((device,), {}, "device") if before == 0 else None
    if not names:
        return (), {}, None
    if len(names) > 1:
        return None
    only = signature.parameters[names[0]]
    annotation = only.annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    takes_device = annotation is inspect.Parameter.empty or _DEVICE_LIKE.search(text)
    return ((device,), {}, only.name) if takes_device and only.kind in _POSITIONAL else None


def cannot_run(value: Callable[..., Any]) -> str | None:
    """``an async function``, ``a generator function``: a call does not run them. Else None."""
    call = attribute(type(value), "__call__")
    for target in (value, call):
        # Of other objects, the __call__ of the type is what runs.
        if not is_a(target, _FUNCTIONS):
            continue
        if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
            return "an async function"
        if inspect.isgeneratorfunction(target):
            return "a generator function"
    return None


def unwrapped(value: Any) -> Any:
    """The function inside partials, bound methods and decorators with ``__wrapped__``."""
    visited: set[int] = set()
    while id(value) not in visited:
        visited.add(id(value))
        if is_a(value, functools.partial):
            value = value.func
        elif is_a(value, types.MethodType):
            value = value.__func__
        else:
            value = attribute(value, "__wrapped__", value)
    return value


def definition_of(value: Any, module: ModuleType, name: str) -> tuple[str | None, int | None]:
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
    bound = name.partition(".")[0]
    lines = [
        node.lineno
        for node in (ast.walk(tree_of(file)) if file else ())
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == bound
    ]
    return file, min(lines, default=None)


def _returns(function: ast.AST) -> Iterator[ast.Return]:
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.Return):
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield from _returns(child)


def names_of(factory: Any, functions: Sequence[Any]) -> list[str]:
    """Names for several callables that a factory returned: the variables of ``return (generator,
    discriminator), ...``, or their own names, numbered where they are equal: ``Linear 0``."""
    with contextlib.suppress(OSError, TypeError, SyntaxError, ValueError, RecursionError):
        tree = ast.parse(textwrap.dedent(inspect.getsource(unwrapped(factory))))
        returns = [node.value for node in _returns(tree.body[0])] if tree.body else []
        match returns:
            case [ast.Tuple(elts=[first, *_]) | ast.List(elts=[first, *_])]:
                elements = first.elts if isinstance(first, ast.Tuple | ast.List) else []
                names = [node.id for node in elements if isinstance(node, ast.Name)]
                if len(elements) == len(set(names)) == len(functions):
                    return names
    names = list(map(name_of, functions))
    return [
        f"{name} {names[:index].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]


_LONGEST = 200
"""Maximum length of a name: longer ones are generated."""


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


def kind(value: Any) -> str:
    """``a Tensor``, ``an int``."""
    name = type_name(value)
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
