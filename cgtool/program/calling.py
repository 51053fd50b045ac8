"""How a value of the user's can be called, from its signature and never from its source."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from cgtool.program.guarded_access import attribute, is_a

_DEVICE_LIKE = re.compile(r"\b(str|device|Any|DeviceLikeType)\b")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def real_module(module: torch.nn.Module) -> torch.nn.Module:
    """The module behind torch.compile, DataParallel and DistributedDataParallel, which take
    anything and pass it on."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while True:
        inner = attribute(module, "_orig_mod")
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
