"""Ask an object of the user's what it is, when the answer may be an exception.

Proxies, mocks and lazy objects run code for ``__class__`` and for every attribute, and that code
may raise anything. What cannot answer is taken for its bare type, without the attribute.
"""

from __future__ import annotations

from typing import Any


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
    """The name of the type, whatever its metaclass answers."""
    return str(type.__dict__["__name__"].__get__(type(value)))


def text_of(error: BaseException) -> str:
    """``str``, whatever a ``__str__`` of the user's does."""
    try:
        return str(error)
    except Exception as other:
        return f"(its message raised {type_name(other)})"
