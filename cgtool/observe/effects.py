"""What an op does to its arguments: which it writes, and whether it looks at their values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from cgtool.torch_compat.private import schema_of

# Batch norm moves its statistics without saying so in its schema.
_STATISTICS = {
    "aten::batch_norm": (3, 4, 5),
    "aten::instance_norm": (3, 4, 5),
    "aten::native_batch_norm": (3, 4, 5),
    "aten::cudnn_batch_norm": (3, 4, 5),
    "aten::miopen_batch_norm": (3, 4, 5),
}
"""Positions of the running mean, the running variance, and of the flag of training."""


@cache
def _written_positions(func: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    schema = schema_of(func)
    if schema is None:
        return (), ()
    positions: list[int] = []
    names: list[str] = []
    for index, one in enumerate(schema.arguments):
        if one.alias_info is not None and one.alias_info.is_write:
            names.append(one.name)
            if not one.kwarg_only:
                positions.append(index)
    return tuple(positions), tuple(names)


def may_write(func: Any) -> bool:
    """False for ops that never change an argument."""
    schema = schema_of(func)
    return any(_written_positions(func)) or (schema is not None and schema.name in _STATISTICS)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Tensors among the arguments that the op writes in place."""
    positions, names = _written_positions(func)
    for index in positions:
        if index < len(args):
            yield from _tensors(args[index])
    for name in names:
        if name in kwargs:
            yield from _tensors(kwargs[name])
    schema = schema_of(func)
    statistics = _STATISTICS.get(schema.name) if schema is not None else None
    if statistics is not None and len(args) > statistics[2] and args[statistics[2]]:
        yield from _tensors(list(args[statistics[0] : statistics[1] + 1]))


_OVERWRITES = frozenset(
    (
        "aten::zero_", "aten::fill_", "aten::copy_", "aten::_foreach_zero_", "aten::_foreach_copy_",
        "aten::normal_", "aten::uniform_", "aten::random_", "aten::exponential_",
        "aten::bernoulli_",
    )
)  # fmt: skip


def overwrites(name: str) -> bool:
    """True when an op of this name reads nothing of what it writes."""
    return name.partition(".")[0] in _OVERWRITES or name.endswith((".out", "_out"))


_LOOKS_AT_SHAPES = (
    "aten::empty_like", "aten::new_empty", "aten::zeros_like", "aten::ones_like", "aten::full_like",
    "aten::rand_like", "aten::randn_like", "aten::new_zeros", "aten::new_ones", "aten::new_full",
    "aten::detach", "aten::alias", "aten::lift_fresh", "aten::record_stream", "aten::set_",
    "aten::resize_", "aten::is_", "aten::_unsafe_view", "aten::_reshape_alias", "profiler::",
    "prim::",
)  # fmt: skip


@cache
def _is_view(func: Any) -> bool:
    schema = schema_of(func)
    if schema is None:
        return False
    if any(one.alias_info is not None and one.alias_info.is_write for one in schema.arguments):
        return False
    return any(one.alias_info is not None for one in schema.returns)


def looks_at_shapes(name: str) -> bool:
    """True for ops that look at the shapes of their arguments alone."""
    return name.startswith(_LOOKS_AT_SHAPES)


def reads_values(func: Any, name: str) -> bool:
    """False for views, and for ops that look at the shapes of their arguments alone."""
    return not looks_at_shapes(name) and not _is_view(func)
