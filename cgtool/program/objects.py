"""Inspects the user's objects without trusting them.

Proxies, mocks and lazy objects run code for ``__class__`` and for every attribute, and that code
may raise anything. Then the bare type counts, without the attribute.
"""

from __future__ import annotations

import functools
import reprlib
import types
from typing import Any

import torch

from cgtool.torch_compat.private import COMPILED_MODULE

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


def kind_of(value: Any) -> str:
    """``a Tensor``, ``an int``."""
    name = type_name(value)
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


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
