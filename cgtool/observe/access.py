"""Reads and writes of op calls: storages, bytes and floating-point operations, as plain numbers.

Nothing is kept alive. A number names one storage over one lifetime: a weak reference to the shell
of a dead storage keeps its address from being used again, and holds no device memory. Costs four to
six microseconds an op that launches, and does not disturb the program.
"""

from __future__ import annotations

import logging
import math
from collections import ChainMap, Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec
import torch

from cgtool.model.capture import Argument, ArgumentList, Call
from cgtool.observe.effects import UNINITIALIZED, looks_at_shapes, overwrites, written_by
from cgtool.observe.ops import UNKNOWN
from cgtool.observe.tensors import is_on_host, listed_tensors, on_host, strided_parts
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import (
    free_weak_storage,
    packet_of,
    schema_of,
    storage_address,
    weak_storage_expired,
)
from cgtool.torch_compat.storages import StorageRef, extent, weak_reference


def _rows(args: Sequence[Any]) -> float:
    """For ``op(self, dim, index, ...)``."""
    whole, dim, index = args[:3]
    return float(index.numel() * whole.numel() / whole.size(dim))


def _items(args: Sequence[Any]) -> float:
    """For ``op(self, dim, index, ...)``, an element for each index."""
    return float(args[2].numel())


def _vectors(args: Sequence[Any]) -> float:
    """For ``embedding(weight, indices)``."""
    return float(args[1].numel() * args[0].numel() / args[0].size(0))


def _indexed(args: Sequence[Any]) -> float:
    """For ``op(self, indices, ...)`` with an index, or None, for each of the first dimensions."""
    whole, indices = args[:2]
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    shape = torch.broadcast_shapes(*(index.shape for _, index in given))
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
    dtype: str(dtype).removeprefix("torch.")
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point
}
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_STRIDED = torch.strided

_SHOWN = frozenset((int, float, bool, complex, str, torch.dtype))
"""Types of arguments that are part of what an op computes, next to tensors and lists."""

_Sum = tuple[dict[int, torch.Tensor], int]
"""Storages, in order, each with a tensor on it, and bytes."""


@dataclass(slots=True)
class _Known:
    """The accesses of calls with like arguments and results, by positions among their tensors."""

    call: Call
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    operands: tuple[int, ...]

    def call_on(self, numbers: Sequence[int]) -> Call:
        """The record of such a call, from the numbers of the storages of its tensors."""
        call, number = self.call, numbers.__getitem__
        return Call(
            tuple(map(number, self.reads)),
            tuple(map(number, self.writes)),
            call.read_bytes,
            call.written_bytes,
            call.flops,
            call.dtype,
            call.arguments,
            tuple(map(number, self.operands)),
        )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one block of memory and answers for itself."""
    return type(tensor) in _PLAIN and tensor.layout is _STRIDED and not tensor.is_nested


def _is_host_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor is passed by value: the kernel does not read its memory."""
    return tensor.dim() == 0 and on_host(tensor)


def described(value: Any) -> tuple[str, int]:
    """``Argument.value`` and ``operands``; "" for what does not change what an op computes."""
    if isinstance(value, list | tuple):
        texts, counts = zip(*map(described, value), strict=True) if value else ((), ())
        return f"[{', '.join(text or 'None' for text in texts)}]", sum(counts)
    if not isinstance(value, torch.Tensor):
        text = str(value) if type(value) in _SHOWN else ""
        return text.removeprefix("torch."), 0
    if type(value) not in _PLAIN or value.layout is not _STRIDED or value.is_nested:
        return type(value).__name__, 0
    if _is_host_number(value):
        with unobserved():
            return str(value.item()), 0
    text = f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
    if not value.is_contiguous():
        text += f" strides ({','.join(map(str, value.stride()))})"
    if value.storage_offset():
        text += f" offset {value.storage_offset()}"
    return text, 1


class AccessLog:
    """Numbers storages, and notes what each call read and wrote of them.

    One log for everything whose storages share numbers: forward and backward of a capture.
    """

    def __init__(self) -> None:
        self._storages: list[int] = []
        """Weak references, by number: kept, so that a number is that of one storage."""
        self._free = free_weak_storage
        self._numbers: dict[int, int] = {}
        self._made: set[int] = set()
        """Numbers of the storages that recorded calls made."""
        self._flops = FlopCounter()
        self._argument_lists: dict[Any, tuple[int, ArgumentList]] = {}
        self._known: dict[tuple[Any, ...], _Known] = {}

    def __del__(self) -> None:
        for storage in self._storages:
            self._free(storage)

    def note(self, name: str, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> Call:
        """The record of a call of ``func`` that has just returned ``result``; ``name`` as in
        ``OpCall``. Never raises: `UNKNOWN` for a call whose arguments cannot be read."""
        try:
            return self._note(name, func, args, kwargs, result)
        except Exception:
            # A tensor subclass may raise anything, and the program must go on.
            return UNKNOWN

    def _note(self, name: str, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> Call:
        tensors: list[torch.Tensor] = []
        key: list[Any] = [name, *kwargs]
        is_plain = self._add(key, tensors, args)
        if kwargs:
            is_plain &= self._add(key, tensors, kwargs.values())
        of_arguments, count = tuple(key), len(tensors)
        for tensor in (result,) if isinstance(result, torch.Tensor) else listed_tensors((result,)):
            if _is_plain(tensor):
                tensors.append(tensor)
                key += tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
            else:
                is_plain = False
        numbers = list(map(self._number, tensors[:count]))
        first_made = len(self._numbers)
        numbers += map(self._number, tensors[count:])
        self._made.update(range(first_made, len(self._numbers)))
        # Tensors that share memory share numbers.
        key += map(numbers.index, numbers)
        identity = tuple(key)
        known = self._known.get(identity)
        if known is not None:
            return known.call_on(numbers)
        call = self._examine(name, func, args, kwargs, result)
        call = msgspec.structs.replace(
            call,
            arguments=self._argument_list(of_arguments, func, args, kwargs),
            operands=tuple(
                number
                for tensor, number in zip(tensors[:count], numbers, strict=False)
                if not _is_host_number(tensor)
            ),
        )
        if is_plain:
            place = numbers.index
            places = (tuple(map(place, each)) for each in (call.reads, call.writes, call.operands))
            self._known[identity] = _Known(call, *places)
        return call

    def note_made(self, name: str, result: Any) -> None:
        """The result of a call that launched nothing: it may be memory that another call fills."""
        if not name.startswith(UNINITIALIZED):
            return
        first_made = len(self._numbers)
        for tensor in listed_tensors((result,)):
            if _is_plain(tensor):
                self._number(tensor)
        self._made.update(range(first_made, len(self._numbers)))

    def outside(self, numbers: Iterable[int]) -> dict[int, StorageRef]:
        """Of these storages, by number, those on the device that no recorded call made, and that
        live."""
        keys = {number: self._storages[number] for number in numbers if number not in self._made}
        return {
            number: StorageRef.by_key(key)
            for number, key in keys.items()
            if not (weak_storage_expired(key) or is_on_host(key))
        }

    def used_freed(self, call: Call) -> bool:
        """Whether a call used memory that no recorded call made, and that was freed since."""
        used = {*call.reads, *call.writes, *call.operands}
        return any(weak_storage_expired(self._storages[number]) for number in used - self._made)

    def _examine(
        self, name: str, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any
    ) -> Call:
        """The record of a call, without its arguments."""
        given = listed_tensors((*args, *kwargs.values()))
        written = list(written_by(func, args, kwargs))
        results = listed_tensors((result,))
        nothing: _Sum = {}, 0
        known = self._sum(given)
        if looks_at_shapes(name):
            reads = nothing
        else:
            reads = self._sum(_left(given, written)) if overwrites(name) else known
        writes = self._sum(written)
        # What shares memory with an argument was not made here.
        fresh = self._sum(results, known[0])
        saved = 0
        partly = _PARTLY.get(name.partition(".")[0])
        if partly is not None:
            # Of its first argument an op like this touches some rows.
            whole = args[0]
            saved = max(0, _bytes(whole) - round(partly(args)) * whole.element_size())
        return Call(
            tuple(reads[0]),
            (*writes[0], *fresh[0]),
            max(0, reads[1] - saved),
            max(0, writes[1] - saved) + fresh[1],
            self._flops.count(func, args, kwargs, result),
            _floating(results) or _floating(written),
        )

    def _argument_list(
        self, key: tuple[Any, ...], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> int:
        """The index of the list of these arguments, without those that have their default value:
        PyTorch passes on only some of them."""
        lists = self._argument_lists
        known = lists.get(key)
        if known is None:
            schema = schema_of(func).arguments
            values = {**dict(zip((each.name for each in schema), args, strict=False)), **kwargs}
            arguments = tuple(
                Argument(each.name, text, count)
                for each in schema
                if each.name in values
                for text, count in [described(values[each.name])]
                if text and text != described(each.default_value)[0]
            )
            known = lists[key] = len(lists), ArgumentList(arguments)
        return known[0]

    def _add(self, key: list[Any], tensors: list[torch.Tensor], values: Iterable[Any]) -> bool:
        """Append what identifies each value, and the tensors: on the path of every op, so without
        any text. False if a tensor is not plain."""
        is_plain = True
        for value in values:
            kind = type(value)
            if kind in _PLAIN and value.layout is _STRIDED and not value.is_nested:
                tensors.append(value)
                if value.dim() == 0 and on_host(value):
                    with unobserved():
                        key.append(repr(value.item()))
                    key.append(value.dtype)
                else:
                    key += value.dtype, value.shape, value.stride(), value.storage_offset()
            elif kind in _SHOWN:
                # 1, 1.0 and True are equal.
                key += kind, value
            elif kind is list or kind is tuple:
                key.append(len(value))
                is_plain &= self._add(key, tensors, value)
            else:
                key.append(kind)
                is_plain &= not isinstance(value, torch.Tensor | dict)
        return is_plain

    def argument_lists(self) -> tuple[ArgumentList, ...]:
        """The lists of arguments that ``Call.arguments`` refers to."""
        return tuple(arguments for _, arguments in self._argument_lists.values())

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage, if an op has used it."""
        if type(tensor) not in _PLAIN or tensor.layout is not _STRIDED:
            return None
        return self._numbers.get(storage_address(tensor))

    def _number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's storage, a new one if it has none."""
        key = storage_address(tensor)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self._storages.append(weak_reference(tensor))
        return number

    def _sum(self, tensors: Sequence[torch.Tensor], without: Container[int] = ()) -> _Sum:
        """Storages and bytes of some tensors, each once."""
        storages, total = dict[int, torch.Tensor](), 0
        places: set[tuple[Any, ...]] = set()
        for tensor in tensors:
            if type(tensor) not in _PLAIN or tensor.layout is not _STRIDED:
                parts = [part for _, part in strided_parts(tensor)]
                more, size = self._sum(parts, without)
                storages |= more
                total += size
                continue
            size = tensor.nbytes if tensor.is_contiguous() else _bytes(tensor)
            number = self._number(tensor)
            if not size or number in without:
                continue
            if number not in storages:
                storages[number] = tensor
                total += size
                continue
            # Another part of this storage, or the same once more.
            first, place = storages[number], (number, tensor.storage_offset(), size)
            places.add((number, first.storage_offset(), _bytes(first)))
            if place not in places:
                places.add(place)
                total += size
        return storages, total


def _left(given: list[torch.Tensor], written: list[torch.Tensor]) -> list[torch.Tensor]:
    """``given`` without the tensors that are only written; one that is also read is there twice."""
    times = Counter(map(id, written))
    left = []
    for tensor in given:
        if times[id(tensor)]:
            times[id(tensor)] -= 1
        else:
            left.append(tensor)
    return left


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements at different addresses: an expanded tensor repeats its elements."""
    if tensor.is_contiguous():
        return tensor.nbytes
    shape, stride = tensor.shape, tensor.stride()
    distinct = math.prod(size for size, step in zip(shape, stride, strict=True) if step)
    return min(distinct, extent(shape, stride)) * tensor.element_size()


def _floating(tensors: Sequence[torch.Tensor]) -> str | None:
    for tensor in tensors:
        name = _FLOATING.get(tensor.dtype)
        if name is not None:
            return name
    return None


aten = torch.ops.aten
_RAGGED: dict[Any, int] = {
    aten._flash_attention_forward: 3,
    aten._flash_attention_backward: 6,
    aten._efficient_attention_forward: 4,
    aten._efficient_attention_backward: 6,
}
"""Formulas that take tensors and read offsets from the device, which makes the host wait and a
capture fail; and the position of these offsets among the arguments."""


class FlopCounter:
    """Floating-point operations of single calls, by the formulas of ``torch.utils.flop_counter``:
    matmuls, convolutions and attention, where a multiplication and an addition count as two. Never
    raises: None for what it cannot count."""

    def __init__(self) -> None:
        self._formula_of: Mapping[Any, Callable[..., Any]] = {}
        self._of_shapes: Any = None
        # Not imported with this file: it imports Triton where that is installed (80 ms), and warns
        # where it is not.
        log = logging.getLogger("torch.utils.flop_counter")
        disabled, log.disabled = log.disabled, True
        try:
            from torch.utils import flop_counter

            # PyTorch's registry comes first, and is read late: the user's code may add to it.
            self._formula_of = ChainMap(
                flop_counter.flop_registry, _composite_formulas(flop_counter)
            )
            # A formula is wrapped to take shapes, unless it was registered to take tensors.
            self._of_shapes = flop_counter.shape_wrapper(lambda: 0).__code__
        except Exception:
            # A broken Triton or another PyTorch: no formulas.
            return
        finally:
            log.disabled = disabled

    def count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """The operations of a call that returned ``result``: an int, or None."""
        formula = self._formula_of.get(packet_of(func))
        if formula is None:
            return None
        try:
            return self._count(formula, func, args, kwargs, result)
        except Exception:
            # Formulas of the user's, and arguments of any kind.
            return None

    def _count(self, formula: Any, func: Any, args: Any, kwargs: Any, result: Any) -> int | None:
        if formula.__code__ is not self._of_shapes:
            offsets = _RAGGED.get(packet_of(func))
            if offsets is None or len(args) <= offsets or args[offsets] is not None:
                return None
        return int(formula(*args, **kwargs, out_val=result))


def _composite_formulas(library: Any) -> dict[Any, Callable[..., Any]]:
    """For composite ops, which a mode sees whole in inference mode."""

    def linear(x: Any, weight: Any, *_: Any, **_kwargs: Any) -> int:
        return int(2 * prod(x) * weight[0])

    def matmul(left: Any, _right: Any, out_shape: Any = None, **_kwargs: Any) -> int:
        return int(2 * prod(out_shape) * left[-1])

    def convolution(x: Any, weight: Any, *_: Any, out_shape: Any = None, **_kwargs: Any) -> int:
        return int(library.conv_flop_count(x, weight, out_shape, transposed=False))

    def transposed(x: Any, weight: Any, *_: Any, out_shape: Any = None, **_kwargs: Any) -> int:
        return int(library.conv_flop_count(x, weight, out_shape, transposed=True))

    def attention(query: Any, key: Any, value: Any, *_: Any, **_kwargs: Any) -> int:
        return int(library.sdpa_flop_count(query, key, value))

    formulas: dict[Any, Callable[..., Any]] = {
        aten.linear: linear,
        aten.matmul: matmul,
        aten.scaled_dot_product_attention: attention,
    }
    formulas |= dict.fromkeys((aten.conv1d, aten.conv2d, aten.conv3d), convolution)
    formulas |= dict.fromkeys(
        (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d), transposed
    )
    return {op: library.shape_wrapper(formula) for op, formula in formulas.items()}
