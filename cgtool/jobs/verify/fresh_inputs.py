"""New values for static inputs, valid wherever the user's own values are.

The meaning of a tensor is unknown, so new values are made from its own values and must keep their
properties: the range, lines that sum to one or have length one, an order, symmetry, lines that are
not all zero. A candidate without such a property is dropped, and the next one changes less:
mixtures of slices (a batch of samples, usually), which are convex and so keep most facts;
permutations of each line; permutations of slices.

How several tensors depend on each other is unknown too. ``reordered`` keeps that: the same samples
in another order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from cgtool.observe.raw_tensors import arithmetic, raw

_TRIES = 3
"""Draws of all candidates: a permutation of a few values can be the same as before."""
_LEAST_SHARE = 0.6
"""Least share of one of two slices in a mixture. More than half: a mixture of an invertible
matrix's rows is invertible."""
_FEW = 8
"""Values with no more distinct numbers than this are a choice: labels, masks, signs."""
_SAMPLE = 1 << 16
_MOST_ROWS = 1024
"""Larger matrices are not tested for being positive definite."""

Fact = tuple[str | int, ...]


def fresh(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor | None:
    """New values on the CPU for a tensor; None if there are none, or it is not strided."""
    with raw():
        values = tensor.detach().cpu()
    with arithmetic():
        if values.layout != torch.strided or values.is_quantized or not values.numel():
            return None
        if values.is_floating_point() or values.is_complex():
            wide = values.to(torch.complex128 if values.is_complex() else torch.float64)
            rounding = torch.finfo(values.dtype).eps
        else:
            wide, rounding = values.to(torch.int64), 0.0
        finite = wide.isfinite()
        if bool(finite.all()):
            new = _new(wide, rounding, generator)
        elif bool(finite.any()) and (new := _new(wide[finite], rounding, generator)) is not None:
            # The infinities of masks stay in their places.
            new = wide.masked_scatter(finite, new)
        else:
            return None
        return None if new is None else new.to(values.dtype)


def reordered(
    tensors: Sequence[torch.Tensor], generator: torch.Generator
) -> list[torch.Tensor | None]:
    """The samples of a batch in another order, the same for all tensors that have as many; None for
    the others."""
    with raw():
        tensors = [tensor.detach().cpu() for tensor in tensors]
    with arithmetic():
        sizes = Counter(tensor.shape[0] for tensor in tensors if _is_batch(tensor))
        if not sizes:
            return [None] * len(tensors)
        count = sizes.most_common(1)[0][0]
        order = torch.randperm(count, generator=generator).roll(1)
        return [
            tensor[order] if _is_batch(tensor) and len(tensor) == count else None
            for tensor in tensors
        ]


def _is_batch(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.dim() > 0 and tensor.shape[0] > 1


def _new(values: torch.Tensor, rounding: float, generator: torch.Generator) -> torch.Tensor | None:
    if bool((values == values.reshape(-1)[0]).all()):
        # A constant shows no more than its sign, unless it is a uniform distribution.
        is_free = rounding and all(name != "sums to one" for name, *_ in _facts(values, rounding))
        return _scaled(values, generator) if is_free else None
    facts = list(_facts(values, rounding))
    least_change = 4 * rounding * float(values.abs().max())
    for _ in range(_TRIES):
        for candidate in _candidates(values, facts, generator):
            if (
                float((candidate - values).abs().max()) > least_change
                and _keeps_ranges(candidate, values)
                and set(facts) <= set(_facts(candidate, rounding))
            ):
                return candidate
    return None


def _scaled(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    share = torch.rand(values.shape, generator=generator, dtype=torch.float64)
    # Zeros usually mean "no value yet".
    return values * (0.5 + 0.5 * share) if bool(values.any()) else share.to(values.dtype)


def _candidates(
    values: torch.Tensor, facts: list[Fact], generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """From the most to the least changed."""
    axes = [axis for axis, size in enumerate(values.shape) if size > 1]
    first, last = axes[0], axes[-1]
    order = torch.randperm(values.shape[first], generator=generator)
    if values.is_floating_point() or values.is_complex():
        share, scale = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        share, scale = 1 - share * (1 - _LEAST_SHARE), 0.5 + scale / 2
        anchor = _anchor(values)

        def mixed(axes: tuple[int, ...]) -> torch.Tensor:
            one, other = values, values
            for axis in axes:
                one, other = one.index_select(axis, order), other.index_select(axis, order.roll(1))
            return torch.lerp(other, one, share)

        mixtures = [mixed((first,))]
        if ("symmetric",) in facts and values.shape[-1] == len(order):
            mixtures.append(mixed((values.dim() - 2, values.dim() - 1)))
        for mixture in mixtures:
            yield anchor + scale * (mixture - anchor)
        yield from mixtures
        yield anchor + scale * (values - anchor)
    yield from (
        _other_steps(values, axis, generator) for name, *rest in facts if name in _ORDERS
        for axis in rest if isinstance(axis, int)
    )  # fmt: skip
    for axis in (last, first):
        shuffled = torch.rand(values.shape, generator=generator).argsort(axis)
        yield values.gather(axis, shuffled)
    yield values.index_select(first, order)


def _anchor(values: torch.Tensor) -> float:
    """The number of the tensor's range that is nearest to zero: towards it values may shrink."""
    if values.is_complex():
        return 0.0
    low, high = float(values.min()), float(values.max())
    return min(max(0.0, low), high)


def _other_steps(values: torch.Tensor, axis: int, generator: torch.Generator) -> torch.Tensor:
    """The steps between neighbors of sorted numbers in another order: the first and the last
    number stay (offsets, edges of bins)."""
    steps = values.diff(dim=axis)
    order = torch.randperm(steps.shape[axis], generator=generator)
    start = values.narrow(axis, 0, 1)
    inner = start + steps.index_select(axis, order[:-1]).cumsum(axis)
    end = values.narrow(axis, values.shape[axis] - 1, 1)
    return torch.cat((start, inner, end), axis)


def _keeps_ranges(candidate: torch.Tensor, values: torch.Tensor) -> bool:
    """All numbers are between the least and the largest; integers also of their own slice, where
    the slices of a dimension differ much in that (columns that index tables of their own)."""
    if values.is_complex():
        return True
    if candidate.min() < values.min() or candidate.max() > values.max():
        return False
    if values.is_floating_point():
        return True
    for axis, size in enumerate(values.shape):
        if size == 1 or values.numel() < 4 * size:
            continue
        low, high = _slices(values, axis).aminmax(dim=1)
        if high.max() - low.min() > 2 * (high - low).min() + 1:
            new = _slices(candidate, axis)
            if (new.amin(1) < low).any() or (new.amax(1) > high).any():
                return False
    return True


def _slices(values: torch.Tensor, axis: int) -> torch.Tensor:
    return values.movedim(axis, 0).reshape(values.shape[axis], -1)


_ORDERS = ("ascending", "descending")


def _facts(values: torch.Tensor, rounding: float) -> Iterator[Fact]:
    """Facts about all lines along a dimension, or about the tensor. ``rounding``: the relative
    rounding of its type, 0 for integers."""
    for axis, size in enumerate(values.shape):
        if size == 1:
            continue
        if bool((values != 0).any(axis).all()):
            yield "not all zero", axis
        if size > 2 and not rounding and bool((values.sort(axis).values.diff(dim=axis) != 0).all()):
            yield "all different", axis
        allowed = 1e-6 + 8 * rounding
        if bool(((values.sum(axis) - 1).abs() <= allowed).all()):
            yield "sums to one", axis
        if rounding and bool(((values.abs().square().sum(axis) - 1).abs() <= 2 * allowed).all()):
            yield "length of one", axis
        if size > 2 and not values.is_complex():
            steps = values.diff(dim=axis)
            for name, ahead in zip(_ORDERS, (steps, -steps), strict=True):
                if bool((ahead >= 0).all()) and bool(ahead.any()):
                    yield name, axis
                    if bool((ahead > 0).all()):
                        yield f"strictly {name}", axis
    if rounding and not values.is_complex():
        # If there are many numbers, a sample shows whether it is worth looking at all of them.
        part = values.reshape(-1)[:: max(1, values.numel() // _SAMPLE)]
        different = values.unique() if part.unique().numel() <= _FEW else part
        if different.numel() <= min(_FEW, values.numel() // 2):
            yield "one of", *map(str, different.tolist())
    if values.dim() > 1 and values.shape[-1] == values.shape[-2] > 1:
        yield from _facts_of_matrices(values, bool(rounding))


def _facts_of_matrices(values: torch.Tensor, is_rounded: bool) -> Iterator[Fact]:
    if not bool(values.tril(-1).any()):
        yield ("upper triangle",)
    if not bool(values.triu(1).any()):
        yield ("lower triangle",)
    if bool((values == values.mH).all()):
        yield ("symmetric",)
        if is_rounded and values.shape[-1] <= _MOST_ROWS:
            _, failed = torch.linalg.cholesky_ex(values)
            if not bool(failed.any()):
                yield ("positive definite",)
