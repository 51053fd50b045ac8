"""Values of the host, reduced to what a comparison with later ones needs."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import types
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import torch

from cgtool.observe.frames import package_part
from cgtool.observe.lookup import MISSING, Identity, behind, is_immutable
from cgtool.observe.tensors import key_of
from cgtool.observe.uses import Use
from cgtool.torch_compat.private import children_of

MOST_ITEMS = 4096
"""Items of a container that are looked at."""
_SIMPLE = (bool, int, float, complex, str, bytes)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
COUNTED = (dict, list, tuple, set, frozenset, collections.deque)


class State(NamedTuple):
    """A value of the host, reduced to what a comparison needs."""

    kind: str
    """``value``; ``table`` (of numbers or texts); ``items`` (other objects, in order);
    ``function``; ``partial`` (a function and arguments); ``presence`` (whether it is not None);
    ``owner`` (of parameters); ``count`` (how many items, or whether there are any)."""
    content: tuple[Hashable, ...]
    """Values, or identities of objects."""

    def __str__(self) -> str:
        if self.kind == "presence":
            return "an object" if self.content[0] else "None"
        if self.kind not in ("value", "table", "count"):
            return f"{len(self.content)} items" if self.kind == "items" else f"a {self.kind}"
        shown = repr(list(self.content) if self.kind == "table" else self.content[0])
        return shown if len(shown) < 60 else shown[:57] + "..."


def state_of(value: Any) -> State | None:
    """None for what is compared elsewhere (tensors, modules) or cannot be."""
    if value is None or type(value) in _SIMPLE or isinstance(value, enum.Enum):
        return State("value", (value,))
    if isinstance(value, _FUNCTIONS):
        return State("function", (Identity(_unwrapped(value)),))
    if isinstance(value, functools.partial):
        parts = (value.func, *value.args, *itertools.chain(*value.keywords.items()))
        simple = (part if type(part) in _SIMPLE else Identity(part) for part in parts)
        return State("partial", tuple(simple))
    if isinstance(value, torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict):
        return State("items", tuple(map(Identity, children_of(value).values())))
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        items = list(value)[:MOST_ITEMS]
        if any(isinstance(item, torch.Tensor) for item in items):
            return None
        if all(type(item) in (bool, int, float, str) for item in items):
            return State("table", tuple(items))
        return State("items", tuple(map(Identity, items)))
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        small = getattr(value, "size", MOST_ITEMS) < MOST_ITEMS
        return State("table", tuple(value.reshape(-1).tolist()) if small else (value.tobytes(),))
    return None


def _count_of(use: Use, value: Any, before: State | None) -> State | None:
    """How many items a container has, if that is asked of it. The items of one that has no tensors
    are compared one by one. ``before``: the count at the capture."""
    if not isinstance(behind(value), COUNTED):
        return None
    items = items_of(value)
    if before is None and items and not any(isinstance(item, torch.Tensor) for item in items):
        return None
    return State("count", (bool(items) if use.counted == "empty" else len(items),))


def is_value(value: Any) -> bool:
    """Whether an object stands for a value, and is replaced as a whole."""
    return isinstance(value, enum.Enum) or is_immutable(value)


def _unwrapped(function: Any) -> Any:
    """The function without what ``torch.optim`` puts around it: a scheduler wraps the ``step`` of
    its optimizer."""
    while True:
        function = getattr(function, "__func__", function)
        wrapped = getattr(function, "__wrapped__", None)
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        if wrapped is None or not package_part(file).startswith("/torch/optim/"):
            return function
        function = wrapped


def state_read(use: Use, value: Any, before: State | None = None) -> State | None:
    """What a name means where it is read: a condition may ask whether there is an object at all.
    ``before``: at the capture."""
    if use.counted:
        return _count_of(use, value, before)
    state = state_of(value)
    if use.tested and not use.called and value is not MISSING and (state is None or value is None):
        return State("presence", (value is not None,))
    return state


def items_of(container: Any) -> list[Any]:
    container = behind(container)
    return list(container.values() if isinstance(container, dict) else container)[:MOST_ITEMS]


def keys_of_items(items: Iterable[Any]) -> tuple[Hashable, ...]:
    """The keys of the storages of tensors in a list, in order."""
    return tuple(key_of(each) if isinstance(each, torch.Tensor) else None for each in items)
