"""The functions of a script that run, and what they can name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any

import torch

from cgtool.observe.frames import callers, is_internal, locals_of
from cgtool.observe.source import names_in

_ATTRIBUTES = 64
"""Attributes and items looked at in one object."""
_MODULE_FIELDS = frozenset(vars(torch.nn.Module()))

Stack = dict[int, FrameType]
"""Frames that run, by identity, innermost first."""
Step = tuple[str, str | int]
"""``attribute`` or ``item``, and its name, number or key."""


def stack_of(frame: FrameType | None) -> Stack:
    """The user's frames from ``frame`` outward."""
    return {id(each): each for each in callers(frame) if not is_internal(each.f_code)}


def names_of(frame: FrameType) -> Iterator[tuple[str, Any, bool]]:
    """(name, value, is global) of all that the code of a frame can name."""
    if frame.f_code.co_flags & 1:
        for name, value in locals_of(frame).items():
            yield name, value, False
    for name in names_in(frame.f_code):
        if name in frame.f_globals:
            yield name, frame.f_globals[name], True


def parts_of(value: Any) -> list[tuple[Step, Any]]:
    """Attributes of an object, or items of a container: the first ones."""
    if isinstance(value, torch.Tensor | ModuleType | type):
        return []
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, dict | list | tuple):
        # Not `value.items()`, which may be the script's own.
        items = dict.items(value) if isinstance(value, dict) else enumerate(value)
        kind = "item"
    else:
        kind = "attribute"
        items = getattr(value, "__dict__", {}).items()
    if isinstance(value, torch.nn.Module):
        items = ((name, part) for name, part in items if name not in _MODULE_FIELDS)
    named = ((name, part) for name, part in items if isinstance(name, str | int))
    return [((kind, name), part) for name, part in itertools.islice(named, _ATTRIBUTES)]
