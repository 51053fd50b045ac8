"""What an op does to the memory of its arguments: reads it, writes some of it, writes all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from cgtool.observe.effects import written_by
from cgtool.torch_compat.private import pytree, schema_of, storage_key

_OVERWRITES = frozenset(
    (
        "aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_",
        "aten::random_", "aten::exponential_", "aten::bernoulli_", "aten::geometric_",
        "aten::cauchy_", "aten::log_normal_", "aten::eye_", "aten::_foreach_zero_",
        "aten::_foreach_copy_",
    )
)  # fmt: skip
"""In-place ops that read nothing of what they write."""
_PARTLY = ("scatter", "index_put", "index_copy", "index_fill", "masked_scatter", "masked_fill",
           "put_", "set_", "resize_", "slice_scatter", "select_scatter")  # fmt: skip
"""They write a part, and add nothing: who does this piece by piece knows what he does."""
_ONLY_SHAPES = ("_like", "aten::new_", "aten::empty", "aten::detach", "aten::is_", "aten::sym_")
UNINITIALISED = ("aten::empty", "aten::new_empty")
"""How the names of ops begin that leave memory as they find it."""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    for one in pytree.tree_leaves(value):
        if isinstance(one, torch.Tensor):
            yield one


def _aliases(func: Any) -> bool:
    """True for views: nothing is read."""
    schema = schema_of(func)
    return schema is not None and any(
        one.alias_info is not None and not one.alias_info.is_write for one in schema.returns
    )


def _ignores_input(kwargs: Any, name: str) -> bool:
    """``addmm``, ``baddbmm`` and their like read no input when beta is 0."""
    if not any(part in name for part in ("addmm", "baddbmm", "addbmm", "addmv", "addr")):
        return False
    return bool(kwargs.get("beta", 1) == 0)


class Uninitialised:
    """Memory that was asked for and not written yet, by its storage."""

    def __init__(self) -> None:
        self._made: dict[int, int] = {}
        """Storage to the index of the call that made it."""

    def made(self, call: int, result: Any) -> None:
        """After an op that asks for memory and writes nothing to it."""
        for tensor in tensors_in(result):
            if tensor.layout == torch.strided:
                self._made[storage_key(tensor.untyped_storage())] = call

    def read_by(self, func: Any, name: str, args: Any, kwargs: Any) -> int | None:
        """Before an op: the call whose memory it reads though nothing was written there."""
        if not self._made or _aliases(func):
            return None
        base = name.partition(".")[0]
        writes = {
            id(one): one for one in written_by(func, args, kwargs) if one.layout == torch.strided
        }
        found: int | None = None
        out = {id(one) for one in tensors_in(kwargs.get("out"))}
        for tensor in tensors_in((args, kwargs)):
            if tensor.layout != torch.strided:
                continue
            storage = storage_key(tensor.untyped_storage())
            call = self._made.get(storage)
            if call is None:
                continue
            is_written = id(tensor) in writes
            is_out = id(tensor) in out or base.endswith(("_out", ".out")) or ".out" in name
            if is_written and (base in _OVERWRITES or is_out or any(x in base for x in _PARTLY)):
                continue
            if any(part in base for part in _ONLY_SHAPES) or _ignores_input(kwargs, base):
                continue
            found = call
        for tensor in writes.values():
            self._made.pop(storage_key(tensor.untyped_storage()), None)
        if found is not None:
            self._made = {key: value for key, value in self._made.items() if value != found}
        return found
