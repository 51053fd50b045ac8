"""The effects of an op on memory, by its schema, tags and name: reads, writes and launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from cgtool.observe.tensors import listed_tensors, strided_parts, tensors_in
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.private import schema_of, storage_address

# Batch norm updates its statistics, which its schema does not say.
_STATISTICS = {
    "aten::batch_norm": (3, 4, 5),
    "aten::instance_norm": (3, 4, 5),
    "aten::native_batch_norm": (3, 4, 5),
    "aten::cudnn_batch_norm": (3, 4, 5),
    "aten::miopen_batch_norm": (3, 4, 5),
}
"""Positions of the running mean, the running variance, and of the flag of training."""
_OVERWRITES = frozenset(
    (
        "aten::zero_", "aten::fill_", "aten::copy_", "aten::_foreach_zero_", "aten::_foreach_copy_",
        "aten::normal_", "aten::uniform_", "aten::random_", "aten::exponential_",
        "aten::bernoulli_", "aten::geometric_", "aten::cauchy_", "aten::log_normal_", "aten::eye_",
    )
)  # fmt: skip
"""In-place ops that read nothing of what they write."""
_WRITES_PART = (
    "scatter", "index_put", "index_copy", "index_fill", "masked_scatter", "masked_fill", "put_",
    "set_", "resize_", "slice_scatter", "select_scatter",
)  # fmt: skip
"""They write a part of a tensor: code that fills a tensor piece by piece."""
_COPIES_AND_WRITES = frozenset(
    (
        "aten::index_put", "aten::index_copy", "aten::scatter", "aten::masked_scatter",
        "aten::slice_scatter", "aten::select_scatter",
    )
)  # fmt: skip
"""They write a part of a copy."""
_LAUNCHES_NOTHING = (
    "aten::empty", "aten::new_empty", "aten::detach", "aten::resize_", "aten::set_",
    "aten::lift_fresh", "profiler::", "prim::", "aten::_reshape_alias", "aten::is_",
    "aten::record_stream",
)  # fmt: skip
_UNDECLARED_VIEWS = ("aten::unsafe_", "aten::_unsafe_view")
"""Ops whose results alias their argument although their schemas do not say so."""
_READS_SHAPES = (
    "aten::sym_", "aten::detach", "aten::alias", "aten::lift_fresh",
    "aten::record_stream", "aten::set_", "aten::resize_", "aten::is_", "aten::_unsafe_view",
    "aten::_reshape_alias", "profiler::", "prim::",
)  # fmt: skip
_WITH_BETA = ("addmm", "baddbmm", "addbmm", "addmv", "addr")
"""They read no input when beta is 0."""
UNINITIALIZED = ("aten::empty", "aten::new_empty")
"""How the names of ops begin whose result is uninitialized memory."""


@dataclass(slots=True, frozen=True)
class Effect:
    """The effect of an op on memory."""

    writes: bool
    """It changes an argument."""
    view: bool
    """Results alias arguments, or only a tensor's own shape changes: nothing to run again."""


@cache
def effect_of(func: Any) -> Effect:
    """By schema and tags; an op without a schema does neither."""
    schema = schema_of(func)
    if schema is None:
        return Effect(False, False)
    if torch.Tag.inplace_view in getattr(func, "tags", ()):
        return Effect(False, True)
    writes = any(_written_positions(func))
    is_view = _returns_alias(func) or schema.name.startswith(_UNDECLARED_VIEWS)
    return Effect(writes, not writes and is_view)


def launches(name: str, touched: Sequence[torch.Tensor]) -> bool:
    """Whether an op launches work on the device, which makes a node in a capture. ``touched``: its
    results, or what an op that returns nothing writes."""
    return not name.startswith(_LAUNCHES_NOTHING) and any(map(_has_elements, touched))


def _has_elements(tensor: torch.Tensor) -> bool:
    # The indices of a compressed sparse tensor have elements although it has none.
    return bool(tensor.numel()) or (
        tensor.layout != torch.strided and any(part.numel() for _, part in strided_parts(tensor))
    )


@cache
def _written_positions(func: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of the arguments that the schema marks as written."""
    schema = schema_of(func)
    if schema is not None and schema.name == "aten::record_stream":
        return (), ()  # The schema says that it writes, but it only tells the allocator.
    positions: list[int] = []
    names: list[str] = []
    for position, argument in enumerate(() if schema is None else schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            names.append(argument.name)
            if not argument.kwarg_only:
                positions.append(position)
    return tuple(positions), tuple(names)


@cache
def _returns_alias(func: Any) -> bool:
    schema = schema_of(func)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def written_by(func: Any, args: Args, kwargs: Kwargs) -> Iterator[torch.Tensor]:
    """Tensors among the arguments that the op writes in place."""
    positions, names = _written_positions(func)
    yield from listed_tensors(args[position] for position in positions if position < len(args))
    yield from listed_tensors(kwargs[name] for name in names if name in kwargs)
    schema = schema_of(func)
    statistics = _STATISTICS.get(schema.name) if schema is not None else None
    if statistics is not None and len(args) > statistics[2] and args[statistics[2]]:
        yield from listed_tensors(args[statistics[0] : statistics[1] + 1])


def overwrites(name: str) -> bool:
    """True when an op of this name reads nothing of what it writes."""
    return name.partition(".")[0] in _OVERWRITES or name.endswith((".out", "_out"))


def writes_part(name: str) -> bool:
    """Whether an op of this name writes a part of a tensor."""
    return any(part in name.partition(".")[0] for part in _WRITES_PART)


def _adds(name: str, args: Any, kwargs: Any) -> bool:
    """Whether an op that writes a part of a tensor combines it with what is there."""
    if name.startswith(("aten::index_put", "aten::_index_put")):
        return bool(kwargs.get("accumulate", args[3] if len(args) > 3 else False))
    return "scatter_add" in name or ("reduce" in name and kwargs.get("include_self", True))


def looks_at_shapes(name: str) -> bool:
    """True for ops that read the shapes of their arguments and no values."""
    return name.startswith(_READS_SHAPES) or takes_shape(name)


def takes_shape(name: str) -> bool:
    """True for ops that make a tensor like another one, which has no memory in common with it."""
    return name.startswith(("aten::new_", "aten::empty")) or name.partition(".")[0].endswith(
        "_like"
    )


def reads_values(func: Any, name: str) -> bool:
    """False for views, and for ops that read only the shapes of their arguments."""
    if looks_at_shapes(name):
        return False
    return any(_written_positions(func)) or not _returns_alias(func)


def _is_view(func: Any) -> bool:
    """True if a result aliases an argument that it does not write."""
    return _aliases(schema_of(func))


def _aliases(declared: Any) -> bool:
    return declared is not None and any(
        result.alias_info is not None and not result.alias_info.is_write
        for result in declared.returns
    )


class Uninitialized:
    """Memory that was allocated and not written yet, by its storage."""

    def __init__(self) -> None:
        self._allocated: dict[int, int] = {}
        """Storage to the index of the call that allocated it."""

    def allocated(self, call: int, result: Any) -> None:
        """After an op that allocates memory and writes nothing to it."""
        for tensor in tensors_in(result):
            if tensor.layout == torch.strided and tensor.numel():
                self._allocated[storage_address(tensor)] = call

    def read_by(self, func: Any, name: str, args: Any, kwargs: Any) -> int | None:
        """Before an op: the call whose memory it reads although nothing was written to it."""
        if not self._allocated or _is_view(func):
            return None
        base = name.partition(".")[0]
        writes = {
            id(tensor): tensor
            for tensor in written_by(func, args, kwargs)
            if tensor.layout == torch.strided and tensor.numel()
        }
        reader: int | None = None
        adds = _adds(name, args, kwargs)
        out = set(map(id, tensors_in(kwargs.get("out"))))
        for tensor in tensors_in((args, kwargs)):
            if tensor.layout != torch.strided or not tensor.numel():
                continue
            storage = storage_address(tensor)
            call = self._allocated.get(storage)
            if call is None:
                continue
            is_written = id(tensor) in writes
            is_out = id(tensor) in out or base.endswith(("_out", ".out")) or ".out" in name
            if is_written and (base in _OVERWRITES or is_out):
                continue
            is_filled = is_written or (base in _COPIES_AND_WRITES and tensor is args[0])
            if is_filled and writes_part(base) and not adds:
                continue
            if looks_at_shapes(base):
                continue
            if kwargs.get("beta", 1) == 0 and any(part in base for part in _WITH_BETA):
                continue
            reader = call
        for tensor in writes.values():
            self._allocated.pop(storage_address(tensor), None)
        if reader is not None:
            self._allocated = {
                key: value for key, value in self._allocated.items() if value != reader
            }
        return reader
