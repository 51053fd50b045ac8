"""The figures of a tensor in one launch: each op of PyTorch takes as long."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from cgtool.devices.values import FACTOR, FIGURES, PART

_BLOCK = 1024
_BLOCKS, _PROGRAMS = 4, 128
"""Blocks that one program looks at before there is a second one, and how many there are at most:
the host adds up their rows."""


def rows_by_kernel(numbers: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """``cgtool.devices.values.Rows``, one for each program."""
    count = triton.cdiv(max(numbers.numel(), words.numel()), _BLOCK * _BLOCKS)
    programs = min(count, _PROGRAMS)
    rows = torch.empty((programs, FIGURES), dtype=torch.float64, device=numbers.device)
    bits = rows.view(torch.int64)
    sizes = numbers.numel(), words.numel()
    _figures[(programs,)](numbers, words, rows, bits, *sizes, PART, FACTOR, FIGURES, _BLOCK)
    return rows


@triton.jit(do_not_specialize=["count", "word_count"])
def _figures(
    numbers,
    words,
    rows,
    bits,
    count,
    word_count,
    part: tl.constexpr,
    factor: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
):
    infinity = float("inf")
    least = tl.full([block], infinity, tl.float64)
    largest = tl.full([block], -infinity, tl.float64)
    total = tl.zeros([block], tl.float64)
    squares = tl.zeros([block], tl.float64)
    zeros = tl.zeros([block], tl.int64)
    nans = tl.zeros([block], tl.int64)
    infinities = tl.zeros([block], tl.int64)
    digest = tl.zeros([block], tl.int64)
    row = tl.program_id(0)
    blocks = tl.cdiv(tl.maximum(count, word_count), block)
    for at in range(row, blocks, tl.num_programs(0)):
        places = tl.cast(at, tl.int64) * block + tl.arange(0, block)
        inside = places < count
        number = tl.load(numbers + places, mask=inside, other=0).to(tl.float64)
        is_nan = number != number
        is_infinite = tl.abs(number) == infinity
        is_finite = inside & (is_nan == 0) & (is_infinite == 0)
        kept = tl.where(is_finite, number, 0.0)
        least = tl.minimum(least, tl.where(is_finite, number, infinity))
        largest = tl.maximum(largest, tl.where(is_finite, number, -infinity))
        total += kept
        squares += kept * kept
        zeros += (inside & (number == 0)).to(tl.int64)
        nans += (inside & is_nan).to(tl.int64)
        infinities += (inside & is_infinite).to(tl.int64)
        word = tl.load(words + places, mask=places < word_count, other=0).to(tl.int64)
        odd = ((places % part + 1) * factor) | 1
        digest += word * (odd ^ (odd >> 29)) * (2 * (places // part) + 1)
    rows += row * columns
    tl.store(rows, tl.min(least))
    tl.store(rows + 1, tl.max(largest))
    tl.store(rows + 2, tl.sum(total))
    tl.store(rows + 3, tl.sum(squares))
    tl.store(rows + 4, tl.sum(zeros).to(tl.float64))
    tl.store(rows + 5, tl.sum(nans).to(tl.float64))
    tl.store(rows + 6, tl.sum(infinities).to(tl.float64))
    tl.store(bits + row * columns + 7, tl.sum(digest))
