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
