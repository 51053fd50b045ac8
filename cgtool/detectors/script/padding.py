"""How much of a static input a batch fills, what an earlier one has left in the rest, and which
parts of a result are computed of the rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from cgtool.model.capture import Frames
from cgtool.observe.script.state import ExternalUse
from cgtool.torch_compat.storages import Layout


class _Rows:
    """How much of the second dimension each batch fills in each row, where rows are copied one by
    one: ``tokens[i, :len(row)].copy_(row)``. A row that a batch does not copy may be in use."""

    def __init__(self, start: int, layout: Layout) -> None:
        self._start = start
        self._layout = layout
        self.filled: dict[int, int] = {}
        """By row, in the current batch."""
        self._stale: dict[int, int] = {}
        """By row: so much of it holds an earlier batch unless this one fills it."""
        self._reset: set[int] = set()
        """Rows that the current batch has written in another way."""
        self._lengths: set[int] = set()
        """Of what all batches have copied to a row, where that is not all of it."""

    def copy(self, target: torch.Tensor) -> bool:
        """A copy to a part of the input; False if it is none of the first elements of a row."""
        row, rest = self._row(target)
        part = target[0] if target.dim() == len(self._layout.shape) and len(target) else target
        inner = Layout(self._layout.dtype, self._layout.shape[1:], self._layout.stride[1:], 0)
        filled = _filled(part, inner) if row is not None and not rest else ()
        if row is None or not filled or filled[1:] != inner.shape[1:]:
            return False
        self.filled[row] = max(filled[0], self.filled.get(row, 0))
        if filled[0] < inner.shape[0]:
            self._lengths.add(filled[0])
        return True

    def write(self, target: torch.Tensor) -> None:
        """Another write, which may reset what an earlier batch has left."""
        row, _ = self._row(target)
        self._reset.update(range(self._layout.shape[0]) if row is None else [row])

    def _row(self, target: torch.Tensor) -> tuple[int | None, int]:
        """The row that a view is in, and the element there that it begins at; None if it is not in
        one row."""
        stride = self._layout.stride[0]
        span = zip(target.shape, target.stride(), strict=True)
        last = sum((size - 1) * step for size, step in span)
        offset = (target.data_ptr() - self._start) // target.element_size()
        if stride <= 0 or offset < 0 or offset % stride + last >= stride:
            return None, 0
        row, rest = divmod(offset, stride)
        return (row, rest) if row < self._layout.shape[0] else (None, 0)

    def next(self, filled: tuple[int, ...]) -> None:
        """A replay has read the batch. ``filled``: how much of each dimension was copied."""
        for row in self._reset:
            self._stale[row] = 0
        for row in range(filled[0] if len(filled) > 1 else 0):
            self._stale[row] = max(filled[1], self._stale.get(row, 0))
        for row, count in self.filled.items():
            self._stale[row] = max(count, self._stale.get(row, 0))
        self.filled, self._reset = {}, set()

    def left(self, rows: int, width: int) -> dict[int, int]:
        """By row: up to where there is an earlier batch, behind what the current one has copied. Of
        a graph that reads so many rows, and so much of each."""
        # Of one length, it may be a field of the row that is copied.
        if len(self._lengths) < 2:
            return {}
        ends = {row: min(self._stale.get(row, 0), width) for row in self.filled if row < rows}
        return {
            row: end
            for row, end in ends.items()
            if self.filled[row] < end and row not in self._reset
        }


class Batch:
    """How much of a static input each batch fills, from its start: the first rows, or the first
    elements of another dimension."""

    def __init__(self, use: ExternalUse) -> None:
        self._start = use.data_ptr
        self._layout = use.layout
        self.filled: tuple[int, ...] = ()
        """By dimension: how much of it the current batch fills."""
        self._stale: tuple[int, ...] = ()
        """By dimension: so much of it holds an earlier batch unless this one fills it."""
        self.rest_is_written = True
        """The other rows were reset; any other write to the buffer is assumed to do that."""
        self.is_written = False
        """Whether the current batch has been copied."""
        self.bytes = 0
        """Size of the last copy of the current batch."""
        self.frames: Frames = ()
        """Where that copy was made."""
        self._copied: tuple[int, ...] = ()
        """As ``filled``, by copies only."""
        self._by_row = _Rows(self._start, self._layout) if len(self._layout.shape) > 1 else None

    @property
    def axis(self) -> int:
        """The first dimension of which an earlier batch has filled more, if there is one."""
        sizes = enumerate(zip(self.filled, self._stale, strict=False))
        return next((axis for axis, (rows, stale) in sizes if rows < stale), 0)

    @property
    def rows(self) -> int:
        """How much of that dimension the current batch fills."""
        return self.filled[self.axis] if self.filled else 0

    @property
    def stale(self) -> int:
        """How much of that dimension holds an earlier batch unless the current one fills it."""
        return self._stale[self.axis] if self._stale else 0

    def says_how_many(self, use: ExternalUse, padding: Padding) -> bool:
        """Whether this may be a mask, or the number, of the real rows of another input."""
        if not self.is_written or not self.rest_is_written or self.padding(use) is not None:
            return False
        return use.rows <= 1 or padding.is_told_by(use, self.filled)

    def padding(self, use: ExternalUse) -> Padding | None:
        """What holds an earlier batch, of what a graph reads; None if nothing does."""
        stale = min(self.stale, size_of(use, self.axis))
        if 0 < self.rows < stale and not self.rest_is_written:
            return RowPadding(use.shape, self.axis, self.rows, stale, size_of(use, self.axis))
        if self._by_row is None or use.data_ptr != self._start or len(use.shape) < 2:
            return None
        shape = use.rows, use.shape[1]
        is_alike = use.layout.stride == self._layout.stride
        left = self._by_row.left(*shape) if is_alike else {}
        return RaggedPadding(shape, dict(self._by_row.filled), left) if left else None

    def fill(self, target: torch.Tensor, whole: int, *, is_copy: bool) -> None:
        """A part of the input, which has ``whole`` bytes, is written."""
        self.is_written = True
        if self._by_row is not None and not (is_copy and self._by_row.copy(target)):
            self._by_row.write(target)
        filled = _filled(target, self._layout) if target.data_ptr() == self._start else ()
        self.filled = filled or self.filled
        self._copied = filled if is_copy and filled else self._copied
        if not filled or target.nbytes >= whole:
            self.rest_is_written = True

    def write(self, target: torch.Tensor) -> None:
        """An op of another kind writes to the input."""
        self.rest_is_written = True
        if self._by_row is not None:
            self._by_row.write(target)

    def next(self) -> None:
        """A replay has read the batch."""
        if self._by_row is not None:
            self._by_row.next(self._copied)
        if self.filled:
            before = self._stale if not self.rest_is_written else ()
            sizes = itertools.zip_longest(self.filled, before, fillvalue=0)
            self._stale = tuple(map(max, sizes))
        self.filled, self._copied, self.bytes = (), (), 0
        self.rest_is_written = self.is_written = False


def _filled(target: torch.Tensor, layout: Layout) -> tuple[int, ...]:
    """How much of each dimension of a static input a view contains, which begins where it does; ()
    for a view of another form, such as one of its rows."""
    dimensions = list(zip(layout.shape, layout.stride, strict=True))
    if target.dim() < len(dimensions):
        dimensions = [each for each in dimensions if each[0] > 1]
    if not dimensions or [stride for _, stride in dimensions] != list(target.stride()):
        return _filled_rows(target, layout)
    sizes = iter(target.shape)
    has_all = target.dim() == len(layout.shape)
    return tuple(int(next(sizes)) if has_all or size > 1 else 1 for size in layout.shape)


def _filled_rows(target: torch.Tensor, layout: Layout) -> tuple[int, ...]:
    """The same for several whole rows, however they are viewed: ``x.view(-1)[:n]``."""
    row = math.prod(layout.shape[1:])
    strides = tuple(math.prod(layout.shape[axis + 1 :]) for axis in range(len(layout.shape)))
    is_flat = layout.stride == strides and target.is_contiguous()
    # A single one may be one of several that are copied one by one.
    if not is_flat or not row or target.numel() % row or target.numel() <= row > 1:
        return ()
    return target.numel() // row, *layout.shape[1:]


def size_of(use: ExternalUse, axis: int) -> int:
    """How much of a dimension the graph reads."""
    return use.shape[axis] if axis else use.rows


class Padding(Protocol):
    """What is left of an earlier batch in a static input."""

    @property
    def what(self) -> str:
        """``3 of 8 rows``: how much is real."""

    def is_told_by(self, use: ExternalUse, filled: tuple[int, ...], /) -> bool:
        """Whether another input, of which so much is filled, may say how much is real."""

    def region(self, whole: torch.Tensor) -> torch.Tensor:
        """The part of the input that is real or padding."""

    def own(self, region: torch.Tensor) -> torch.Tensor:
        """A copy of the padding."""

    def others(self, region: torch.Tensor) -> list[torch.Tensor]:
        """Other values for it, in the range of the script's own: on a GPU, an index or a
        probability out of range would end the process."""

    def put(self, region: torch.Tensor, padding: torch.Tensor) -> None:
        """Write the padding."""

    def is_equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two results are equal except for what is computed of padding."""


@dataclass(frozen=True)
class RowPadding:
    """The last rows, or the last elements of another dimension."""

    shape: tuple[int, ...]
    """Of the input."""
    axis: int
    rows: int
    """How many are real."""
    stale: int
    """How many are real or hold an earlier batch."""
    size: int
    """How many the graph reads."""

    @property
    def what(self) -> str:
        unit = f"elements of dimension {self.axis}" if self.axis else "rows"
        return f"{self.rows} of {self.stale} {unit}"

    def is_told_by(self, _use: ExternalUse, filled: tuple[int, ...], /) -> bool:
        return self.rows in filled[self.axis : self.axis + 1]

    def region(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.movedim(self.axis, 0)[: self.stale]

    def own(self, region: torch.Tensor) -> torch.Tensor:
        return region[self.rows :].clone()

    def others(self, region: torch.Tensor) -> list[torch.Tensor]:
        rest = region[self.rows :]
        if region.is_floating_point():
            return [each.expand_as(rest) for each in (region.amax(0), region.amin(0) / 2)]
        return [region[torch.arange(len(rest), device=region.device) % self.rows].clone()]

    def put(self, region: torch.Tensor, padding: torch.Tensor) -> None:
        region[self.rows :] = padding

    def is_equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """A dimension of the results has one or more elements for each row; it may also be that of
        all sequences of rows, flattened."""
        if is_equal(one, other):
            return True
        count = math.prod(self.shape[: self.axis])
        for axis, length in enumerate(one.shape):
            for outer in {1, count}:
                if not length or length % (outer * self.size):
                    continue
                split = (outer, self.size, length // (outer * self.size))
                real = (
                    each.unflatten(axis, split).narrow(axis + 1, 0, self.rows)
                    for each in (one, other)
                )
                if is_equal(*real):
                    return True
        return False


@dataclass(frozen=True)
class RaggedPadding:
    """The last elements of some rows."""

    shape: tuple[int, int]
    """How many rows the graph reads, and how much of each."""
    filled: dict[int, int]
    """By row that the batch has filled: how many elements are real."""
    stale: dict[int, int]
    """By row: how many are real or hold an earlier batch."""

    @property
    def what(self) -> str:
        row, end = next(iter(self.stale.items()))
        return f"{self.filled[row]} of {end} elements of row {row}"

    def is_told_by(self, use: ExternalUse, _filled: tuple[int, ...], /) -> bool:
        rows, width = self.shape
        # The lengths of the rows, or where each begins and the last one ends.
        is_count = math.prod(use.shape) in (rows, rows + 1) and not (
            use.layout.dtype.is_floating_point
        )
        return is_count or width in use.shape[-1:] or use.shape[:2] == self.shape

    def _mask(self, ends: dict[int, int], *, from_filled: bool = False) -> torch.Tensor:
        mask = torch.zeros(self.shape, dtype=torch.bool)
        for row, end in ends.items():
            mask[row : row + 1, self.filled[row] if from_filled else 0 : end] = True
        return mask

    def region(self, whole: torch.Tensor) -> torch.Tensor:
        return whole[: self.shape[0], : self.shape[1]]

    def own(self, region: torch.Tensor) -> torch.Tensor:
        return region[self._padding(region)]

    def _padding(self, region: torch.Tensor) -> torch.Tensor:
        return self._mask(self.stale, from_filled=True).to(region.device)

    def others(self, region: torch.Tensor) -> list[torch.Tensor]:
        own, real = self.own(region), region[self._mask(self.filled).to(region.device)]
        if region.is_floating_point():
            return [each.expand_as(own) for each in (real.amax(0), real.amin(0) / 2)]
        return [real[torch.arange(len(own), device=region.device) % len(real)]]

    def put(self, region: torch.Tensor, padding: torch.Tensor) -> None:
        region[self._padding(region)] = padding

    def is_equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Two dimensions of the results, or one that is both, are those of the input; or one is
        that of its rows."""
        if is_equal(one, other):
            return True
        real = self._mask(self.filled).to(one.device)
        return any(
            is_equal(part[real], another[real])
            for part, another in zip(self._by_element(one), self._by_element(other), strict=True)
        ) or any(
            is_equal(part[real.any(1)], another[real.any(1)])
            for part, another in zip(self._by_row(one), self._by_row(other), strict=True)
        )

    def _by_element(self, result: torch.Tensor) -> Iterator[torch.Tensor]:
        """The result with the two dimensions of the input first."""
        sizes = result.shape
        for axes in itertools.permutations(range(result.dim()), 2):
            if tuple(sizes[axis] for axis in axes) == self.shape:
                yield result.movedim(axes, (0, 1))
        for axis, length in enumerate(sizes):
            count = math.prod(self.shape)
            if length and length % count == 0:
                split = (*self.shape, length // count)
                yield result.unflatten(axis, split).movedim((axis, axis + 1), (0, 1))

    def _by_row(self, result: torch.Tensor) -> Iterator[torch.Tensor]:
        for axis, length in enumerate(result.shape):
            if length == self.shape[0]:
                yield result.movedim(axis, 0)


def is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they are equal, except for the noise of additions in another order."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    noise = 16 * torch.finfo(one.dtype).eps
    scale = float(one.abs().nan_to_num(posinf=0).max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=noise, atol=noise * scale, equal_nan=True)
