"""Which ops launch work on the device: the nodes of a graph, seen from the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cgtool.torch_compat.private import schema_of

_NOTHING = (
    "aten::empty", "aten::new_empty", "aten::detach", "aten::resize_", "aten::set_",
    "aten::lift_fresh", "profiler::", "prim::", "aten::_reshape_alias", "aten::is_",
    "aten::record_stream", "aten::_unsafe_view",
)  # fmt: skip


@dataclass(slots=True)
class Effect:
    """What an op does to memory, by its schema and its tags."""

    writes: bool
    """It changes an argument."""
    view: bool
    """Results alias arguments, or only a tensor's own shape changes: nothing to run again."""


_known: dict[Any, Effect] = {}


def effect_of(func: Any) -> Effect:
    """By schema; ops without one do neither."""
    found = _known.get(func)
    if found is None:
        found = _known[func] = _effect(func)
    return found


def _effect(func: Any) -> Effect:
    schema = schema_of(func)
    if schema is None:
        return Effect(False, False)
    if torch.Tag.inplace_view in getattr(func, "tags", ()):
        return Effect(False, True)
    writes = any(one.alias_info is not None and one.alias_info.is_write for one in schema.arguments)
    view = not writes and any(one.alias_info is not None for one in schema.returns)
    return Effect(writes, view)


def launches(name: str, touched: Sequence[torch.Tensor]) -> bool:
    """``touched``: the results, or what an op that returns nothing writes."""
    return not name.startswith(_NOTHING) and any(one.numel() for one in touched)
