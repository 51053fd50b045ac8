"""The first op that two runs of the same code do not share, and in what it differs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cgtool.observe.ops import OpCall
from cgtool.recapture.iteration import Iteration
from cgtool.recapture.ops import Op, OutsideTensor, Place


@dataclass(frozen=True)
class Difference:
    """The first op that two runs do not share."""

    kind: str
    """``branch``: another op; ``list``: another number of tensors in an argument; ``number``;
    ``values``: of a CPU tensor; ``tensor``: another one."""
    at: int
    """The number of the op, of those on the device."""
    before: OpCall | None
    """The op of the first run; None where that has ended."""
    after: OpCall | None
    old: Any = None
    new: Any = None
    """The arguments that differ; an ``OutsideTensor`` for another tensor."""
    place: Place | None = None
    is_added: bool = False
    """The second run has this op in addition, and then goes on as the first."""
    is_drawn: bool = False
    """The op draws random numbers on the device."""


def first_difference(
    first: Iteration,
    second: Iteration,
    *,
    by_name: bool = False,
    is_meant: Callable[[OutsideTensor], bool] = lambda _tensor: False,
) -> Difference | None:
    """None if both run the same ops, on the same tensors from outside, with the same numbers.

    ``by_name``: ops are the same if their names are, in the order in which they ran; otherwise
    they are also called from the same place. ``is_meant``: whether a tensor of the first run is to
    be read whatever the second one reads.
    """
    if by_name:
        before, after = ([op for op in run.ops if not op.host] for run in (first, second))
    else:
        before, after = first.in_order(), second.in_order()
    filled = first.filled | second.filled
    for at, (old, new) in enumerate(itertools.zip_longest(before, after)):
        if old is None or new is None or not _is_same(old, new, by_name=by_name):
            return Difference(
                "branch",
                at,
                None if old is None else old.call,
                None if new is None else new.call,
                is_added=_is_added(before[at:], after[at:]),
            )
        found = (
            _in_lists(at, old, new)
            or _in_numbers(at, old, new, filled)
            or _in_tensors(at, old, new, first, second, is_meant)
        )
        if found is not None:
            return found
    return None


def _is_added(before: Sequence[Op], after: Sequence[Op]) -> bool:
    if not before or not after:
        return False
    expected, other = before[0].site, after[0].site
    goes_on = any(op.site == expected for op in after)
    return goes_on and all(op.site != other for op in before)


def _in_lists(at: int, old: Op, new: Op) -> Difference | None:
    for key in {**old.lists, **new.lists}:
        counts = old.lists.get(key, 0), new.lists.get(key, 0)
        if counts[0] != counts[1]:
            return Difference("list", at, old.call, new.call, *counts)
    return None


def _in_numbers(at: int, old: Op, new: Op, filled: set[int]) -> Difference | None:
    """Not in memory of the host that a replay fills again."""
    if new.in_optimizer:
        # The options of optimizers are judged as such (``preflight``).
        return None
    before, after = (
        {place: value for place, value in op.numbers if op.read_on_host.get(place) not in filled}
        for op in (old, new)
    )
    for place in {**before, **after}:
        values = before.get(place), after.get(place)
        if values[0] != values[1]:
            kind = "values" if place in new.read_on_host else "number"
            return Difference(
                kind,
                at,
                old.call,
                new.call,
                *values,
                place,
                is_drawn=new.random and place[1] < 0,
            )
    return None


def _is_same(old: Op, new: Op, *, by_name: bool) -> bool:
    if not by_name:
        return old.site == new.site
    names = [op.call.name for op in (old, new)]
    if old.call.autograd_node and new.call.autograd_node:
        # Autograd adds in place where nobody else holds the gradient.
        names = [name.replace("add_.", "add.") for name in names]
    return names[0] == names[1]


def _in_tensors(
    at: int,
    old: Op,
    new: Op,
    first: Iteration,
    second: Iteration,
    is_meant: Callable[[OutsideTensor], bool],
) -> Difference | None:
    by_place = {tensor.position: tensor for tensor in old.outside}
    for tensor in new.outside:
        other = by_place.get(tensor.position)
        if other is None or is_meant(other):
            continue
        if _is_another(other, tensor, first, second):
            return Difference("tensor", at, old.call, new.call, other, tensor, tensor.position)
    return None


def _is_another(
    old: OutsideTensor, new: OutsideTensor, first: Iteration, second: Iteration
) -> bool:
    is_there = (old.address, old.shape) == (new.address, new.shape)
    # Another tensor where the old one was freed: an allocator uses its memory again.
    is_again = old.storage != new.storage and not first.outlived(old.storage)
    if is_there and not is_again:
        return False
    if new.storage == old.storage and new.storage in first.emptied:
        # In memory that each iteration takes for it, and gives back.
        return False
    # Otherwise it existed neither before nor after: it was made in C++ for this call.
    return new.storage in first.storages or second.outlived(new.storage)
