"""Exceptions whose findings are collected already."""

from __future__ import annotations

import contextlib

_TOLD = "_cgtool_told"


def told(error: BaseException) -> bool:
    """True when nobody needs to explain the exception any more."""
    return bool(getattr(error, _TOLD, False))


def tell_once(error: BaseException) -> None:
    """What it means is collected."""
    with contextlib.suppress(AttributeError, TypeError):
        setattr(error, _TOLD, True)
