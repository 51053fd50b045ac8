"""Inspects the user's objects without trusting them.

Proxies, mocks and lazy objects run code for ``__class__`` and for every attribute, and that code
may raise anything. Then the bare type counts, without the attribute.
"""

from __future__ import annotations

import reprlib
from typing import Any

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
