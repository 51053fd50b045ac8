"""A callable of the user's, described before it is called."""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import re
import types
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from cgtool.model.capture import Frame
from cgtool.observe.frames import is_internal
from cgtool.program.objects import attribute, is_a, real_module, type_name, unwrapped
from cgtool.torch_compat.dispatch_keys import Args, Kwargs

_DEVICE_LIKE = re.compile(r"\b(str|device|Any|DeviceLikeType)\b")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _signature_of(value: Any, *, follow_wrapped: bool) -> inspect.Signature | None:
    """A module's signature is that of its ``forward``."""
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


@dataclass(frozen=True)
class UserCallable:
    """The properties of a callable of the user's that are known before it is called."""

    value: Any
    name: str
    """``TransformerBlock`` for a module, a function's own name, ``lambda``."""
    signature: inspect.Signature | None
    """Through decorators. None for builtins that have none."""
    required: tuple[str, ...]
    """Names of the parameters that must be given."""
    never_runs: str | None
    """``an async function``, ``a generator function``: a call does not run them. Else None."""

    def signature_text(self) -> str:
        """``(x, y, scale=1)``, for messages."""
        if self.signature is None:
            return "(...)"
        parameters = [
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in self.signature.parameters.values()
        ]
        text = str(inspect.Signature(parameters))
        return text if len(text) <= 200 else "(...)"

    def mismatch(self, args: Args, kwargs: Kwargs) -> str | None:
        """Why it does not take these arguments, or None.

        By the outermost decorator's signature: it may add arguments of its own.
        """
        signature = _signature_of(self.value, follow_wrapped=False)
        if signature is None:
            return None
        parameters = signature.parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        unknown = [] if takes_any else [f"`{name}`" for name in kwargs if name not in parameters]
        if unknown:
            return f"it has no parameter {' or '.join(unknown)}"
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        return None

    def factory_call(self, device: str) -> tuple[Args, dict[str, Any], str | None] | None:
        """(args, kwargs, name of the parameter that gets the device) to call it as a factory;
        None when it requires more than a device.

        The device goes to the parameter ``device``, or to the only required parameter.
        """
        if self.signature is None:
            return None
        named = self.signature.parameters.get("device")
        if named is not None and named.kind not in _VARIADIC:
            if self.required not in ((), ("device",)):
                return None
            if named.kind is not inspect.Parameter.POSITIONAL_ONLY:
                return (), {"device": device}, "device"
            before = list(self.signature.parameters).index("device")
            return ((device,), {}, "device") if before == 0 else None
        if not self.required:
            return (), {}, None
        if len(self.required) > 1:
            return None
        only = self.signature.parameters[self.required[0]]
        annotation = only.annotation
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        takes_device = annotation is inspect.Parameter.empty or _DEVICE_LIKE.search(text)
        return ((device,), {}, only.name) if takes_device and only.kind in _POSITIONAL else None


def describe(value: Any) -> UserCallable:
    """Describe a function, a module, a class, or an object that can be called."""
    signature = _signature_of(value, follow_wrapped=True)
    required = tuple(
        parameter.name
        for parameter in (signature.parameters.values() if signature is not None else ())
        if parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIADIC
    )
    return UserCallable(value, _name_of(value), signature, required, _never_runs(value))


def _never_runs(value: Any) -> str | None:
    for target in (value, attribute(type(value), "__call__")):
        # Of other objects, the __call__ of the type is what runs.
        if not is_a(target, _FUNCTIONS):
            continue
        if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
            return "an async function"
        if inspect.isgeneratorfunction(target):
            return "a generator function"
    return None


_LONGEST = 200
"""Maximum length of a name: longer ones are generated."""


def _name_of(function: Any) -> str:
    function = unwrapped(function)
    if is_a(function, torch.nn.Module):
        return type_name(real_module(function))
    name = attribute(function, "__name__")
    if not is_a(name, str) or not name:
        return type_name(function)
    return "lambda" if name == "<lambda>" else name[:_LONGEST]


def definition_of(value: Any, module: ModuleType, name: str) -> Frame | None:
    """The line of a function or class of the user's; for other objects, the line of the user's
    module that binds the name."""
    target = unwrapped(value)
    code = attribute(target, "__code__")
    if is_a(code, types.CodeType) and not is_internal(code):
        return Frame(code.co_filename, code.co_firstlineno, name)
    if is_a(target, type):
        with contextlib.suppress(OSError, TypeError):
            if file := inspect.getsourcefile(target):
                return Frame(file, max(1, inspect.getsourcelines(target)[1]), name)
    file = attribute(module, "__file__")
    if not file:
        return None
    binds = re.compile(rf"\s*{re.escape(name.partition('.')[0])}\s*(:[^=]*)?=[^=]")
    lines = enumerate(linecache.getlines(file), 1)
    return Frame(file, next((number for number, line in lines if binds.match(line)), 1), name)


_RETURN = re.compile(r"^\s*return \(?[(\[]([\w\s,]+)[)\]],", re.MULTILINE)
"""``return (generator, discriminator), ...``."""


def names_of(factory: Any, functions: Sequence[UserCallable]) -> list[str]:
    """Names for several callables that a factory returned: the variables of ``return (generator,
    discriminator), ...``, or their own names, numbered where they are equal: ``Linear 0``."""
    with contextlib.suppress(OSError, TypeError, SyntaxError, RecursionError):
        returns = _RETURN.findall(inspect.getsource(unwrapped(factory)))
        names = re.findall(r"\w+", returns[0]) if len(returns) == 1 else []
        if len(names) == len(set(names)) == len(functions) and all(map(str.isidentifier, names)):
            return names
    names = [function.name for function in functions]
    return [
        f"{name} {names[:index].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]
