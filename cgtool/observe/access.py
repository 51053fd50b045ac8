"""What op calls read and wrote: storages, bytes and floating-point operations, as plain numbers.

Nothing is kept alive. A number stands for one storage over one lifetime: a weak reference to the
dead shell of a storage keeps its address from being given to another one, and holds no memory of
the device.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from cgtool.model.capture import Call
from cgtool.observe.effects import looks_at_shapes, may_write, overwrites, written_by
from cgtool.observe.flops import FlopCounter
from cgtool.observe.storage import strided_parts
from cgtool.torch_compat.private import free_weak_storage, storage_key, weak_storage

UNKNOWN = Call()
"""Writes nothing, as no op that owns a node does."""


def _rows(args: Sequence[Any]) -> float:
    """Of ``op(self, dim, index, ...)``."""
    whole, dim, index = args[:3]
    return float(index.numel() * whole.numel() / whole.size(dim))


def _items(args: Sequence[Any]) -> float:
    """Of ``op(self, dim, index, ...)``, an element for each index."""
    return float(args[2].numel())


def _vectors(args: Sequence[Any]) -> float:
    """Of ``embedding(weight, indices)``."""
    return float(args[1].numel() * args[0].numel() / args[0].size(0))


def _indexed(args: Sequence[Any]) -> float:
    """Of ``op(self, indices, ...)`` with an index, or None, for each of the first dimensions."""
    whole, indices = args[:2]
    given = [(dim, one) for dim, one in enumerate(indices) if one is not None]
    shape = torch.broadcast_shapes(*(one.shape for _, one in given))
    return float(prod(shape) * whole.numel() / prod(whole.size(dim) for dim, _ in given))


_PARTLY: dict[str, Callable[[Sequence[Any]], float]] = {
    "aten::embedding": _vectors,
    "aten::gather": _items,
    "aten::index": _indexed,
    "aten::index_add_": _rows,
    "aten::index_copy_": _rows,
    "aten::index_fill_": _rows,
    "aten::index_put_": _indexed,
    "aten::index_reduce_": _rows,
    "aten::index_select": _rows,
    "aten::scatter_": _items,
    "aten::scatter_add_": _items,
    "aten::scatter_reduce_": _items,
    "aten::_index_put_impl_": _indexed,
    "aten::_unsafe_index": _indexed,
}
"""Elements of its first argument that an op touches: rows of a table, not all of it."""


_FLOATING = {
    one: str(one).removeprefix("torch.")
    for one in vars(torch).values()
    if isinstance(one, torch.dtype) and one.is_floating_point
}
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_STRIDED = torch.strided


_Sum = tuple[dict[int, torch.Tensor], int]
"""Storages, in order, each with a tensor on it, and bytes."""


@dataclass(slots=True)
class _Plan:
    """What an op's schema and name say."""

    reads: bool
    """It looks at the values of its arguments."""
    writes: bool
    """It changes an argument."""
    overwrites: bool
    """It reads nothing of what it changes."""
    partly: Callable[[Sequence[Any]], float] | None


class AccessLog:
    """One for everything whose storages are to share numbers: forward and backward of a capture.

    Asked after every op that launches, so it is written for speed: four microseconds an op.
    """

    def __init__(self) -> None:
        self._shells: list[Any] = []
        self._free = free_weak_storage
        self._numbers: dict[int, int] = {}
        self._plans: dict[Any, _Plan] = {}
        self._flops = FlopCounter()

    def __del__(self) -> None:
        for shell in self._shells:
            self._free(shell)

    def note(self, name: str, func: Any, args: tuple[Any, ...], kwargs: Any, made: Any) -> Call:
        """The record of a call of ``func`` that has just returned ``made``; ``name`` as in
        ``OpCall``. Never raises: of a call that cannot be read nothing is known."""
        try:
            return self._note(name, func, args, kwargs, made)
        except Exception:
            # Tensors of anybody's class: the user's code must go on.
            return UNKNOWN

    def _note(self, name: str, func: Any, args: tuple[Any, ...], kwargs: Any, made: Any) -> Call:
        plan = self._plans.get(func)
        if plan is None:
            plan = self._plans[func] = _Plan(
                not looks_at_shapes(name),
                may_write(func),
                overwrites(name),
                _PARTLY.get(name.partition(".")[0]),
            )
        given = _tensors(args)
        if kwargs:
            given += _tensors(kwargs.values())
        written = list(written_by(func, args, kwargs)) if plan.writes else []
        results: Sequence[torch.Tensor] = ()
        if not (written and made is written[0]):
            results = (made,) if isinstance(made, torch.Tensor) else _tensors((made,))
        nothing: _Sum = {}, 0
        known = self._sum(given) if results or not plan.overwrites else nothing
        reads = known if plan.reads else nothing
        if plan.reads and plan.overwrites:
            reads = self._sum(_left(given, written))
        writes = self._sum(written) if written else nothing
        # What shares memory with an argument was not made here.
        fresh = self._sum(results, known[0]) if results else nothing
        saved = 0
        if plan.partly is not None:
            # Of its first argument an op like this touches some rows.
            whole = args[0]
            saved = max(0, _bytes(whole) - round(plan.partly(args)) * whole.element_size())
        return Call(
            tuple(reads[0]),
            (*writes[0], *fresh[0]),
            max(0, reads[1] - saved),
            max(0, writes[1] - saved) + fresh[1],
            self._flops.count(func, args, kwargs, made),
            _floating(results) or _floating(written),
        )

    def _sum(self, tensors: Sequence[torch.Tensor], without: Container[int] = ()) -> _Sum:
        """Of some tensors, each once."""
        all_numbers, found, total = self._numbers, dict[int, torch.Tensor](), 0
        places: set[tuple[Any, ...]] = set()
        for tensor in tensors:
            if type(tensor) not in _PLAIN or tensor.layout is not _STRIDED:
                parts = [part for _, part in strided_parts(tensor)]
                more, size = self._sum(parts, without)
                found |= more
                total += size
                continue
            size = tensor.nbytes if tensor.is_contiguous() else _bytes(tensor)
            storage = tensor.untyped_storage()
            key = storage_key(storage)
            number = all_numbers.get(key)
            if number is None:
                number = all_numbers[key] = len(all_numbers)
                self._shells.append(weak_storage(storage))
            if not size or number in without:
                continue
            if number not in found:
                found[number] = tensor
                total += size
                continue
            # Another part of this storage, or the same once more.
            first, place = found[number], (number, tensor.storage_offset(), size)
            places.add((number, first.storage_offset(), _bytes(first)))
            if place not in places:
                places.add(place)
                total += size
        return found, total


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors among arguments or results, and in the lists and dictionaries among them."""
    found: list[torch.Tensor] = []
    for one in values:
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, (list, tuple)):
            found += _tensors(one)
        elif isinstance(one, dict):
            found += _tensors(one.values())
    return found


def _left(given: list[torch.Tensor], written: list[torch.Tensor]) -> list[torch.Tensor]:
    """``given`` without those that are only written: each stands there once for it."""
    times: dict[int, int] = {}
    for one in written:
        times[id(one)] = times.get(id(one), 0) + 1
    left = []
    for one in given:
        if times.get(id(one)):
            times[id(one)] -= 1
        else:
            left.append(one)
    return left


def _bytes(tensor: torch.Tensor) -> int:
    """Of the elements that lie at different addresses: an expanded tensor repeats its own."""
    if tensor.is_contiguous():
        return tensor.nbytes
    distinct = extent = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride:
            distinct *= size
            extent += (size - 1) * stride
    return min(distinct, extent) * tensor.element_size()


def _floating(tensors: Sequence[torch.Tensor]) -> str | None:
    for one in tensors:
        name = _FLOATING.get(one.dtype)
        if name is not None:
            return name
    return None
