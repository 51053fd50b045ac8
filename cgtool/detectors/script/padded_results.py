"""What a script computes, after a replay, of parts of a result that hold an earlier batch.

A graph computes all rows; those behind the batch are to be cut off. Up to there an op may take them
along: the classes of each row, rows that are joined with others. What mixes them with the real rows
is wrong: a sum, a mean, the largest of all. To tell, each op that takes such a result runs again,
with other values in the padding, and with others in the real rows. Where both change an element of
what it returns, it has mixed them; a mask lets none of the padding through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from cgtool.findings import code
from cgtool.observe.script.state import Op
from cgtool.observe.tensors import key_of, tensors_in
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import no_torch_function, pytree
from cgtool.torch_compat.storages import StorageRef

BUCKET_PADDING_GARBAGE = code("bucket-padding-garbage")
_MOST_BYTES = 256 << 20
"""Of all copies of the tensors that are followed at a time."""
_SLICE = "use the real rows alone (`out[:n]`), or a mask that is zero for the others"


class _Followed(NamedTuple):
    """A tensor of which a part is computed of padding."""

    storage: StorageRef
    """Kept, so that no other storage gets its key."""
    dtype: torch.dtype
    what: str
    """How much of the batch is real: ``3 of 8 rows``."""
    padded: tuple[torch.Tensor, ...]
    """All of its memory, with other values in that part."""
    real: tuple[torch.Tensor, ...]
    """The same, with other values in the rest."""

    @property
    def bytes(self) -> int:
        """Size of the copies."""
        return sum(each.nbytes for each in (*self.padded, *self.real))


class PaddedResults:
    """Follows what is computed of padding, from the results of a graph to an op that mixes it with
    the rest."""

    def __init__(self, report: Callable[..., None], leaves_range: bool) -> None:
        """``leaves_range``: whether values may be tried that no result had."""
        self._report, self._leaves_range = report, leaves_range
        self._followed: dict[int, _Followed] = {}
        """By key of the storage."""

    def __bool__(self) -> bool:
        return bool(self._followed)

    def begin(
        self, tensor: torch.Tensor, again: torch.Tensor, others: Sequence[torch.Tensor], what: str
    ) -> None:
        """Follow what a graph has written. ``again``: what another replay with the same padding
        writes, which may draw other random numbers; ``others``: replays with other padding."""
        # Not every dtype has all that is needed here.
        with contextlib.suppress(Exception):
            own, is_padding = tensor.clone(), _any_differs(again, others)
            if own.is_complex() or not is_padding.any() or is_padding.all():
                return
            padded = [torch.where(is_padding, other, own) for other in others]
            padded += self._others(own, is_padding)
            self._follow(tensor, what, padded, self._others(own, ~is_padding))

    def _others(self, own: torch.Tensor, part: torch.Tensor) -> list[torch.Tensor]:
        """A result with other values in a part of it: in another order, as the index of the largest
        is to change, and larger and smaller ones. On a GPU they stay in the range of the result: an
        index out of range would end the process."""
        values = own[part]
        others = [own.masked_scatter(part, each) for each in (values.roll(1), values.flip(0))]
        if own.is_floating_point():
            low, high = (float(each) for each in own.nan_to_num().aminmax())
            more = self._leaves_range * (high - low + 1)
            others += [own.masked_fill(part, each) for each in (high + more, low - more)]
        return others

    def _follow(
        self,
        tensor: torch.Tensor,
        what: str,
        padded: Sequence[torch.Tensor],
        real: Sequence[torch.Tensor],
    ) -> None:
        key, storage = key_of(tensor), StorageRef(tensor)
        self._followed = {
            known: each for known, each in self._followed.items() if not each.storage.expired()
        }
        copied = sum(each.bytes for each in self._followed.values())
        if key is None or copied + storage.bytes * (len(padded) + len(real)) > _MOST_BYTES:
            return
        padded, real = (
            tuple(_memory(tensor, storage.bytes, each) for each in values)
            for values in (padded, real)
        )
        self._followed[key] = _Followed(storage, tensor.dtype, what, padded, real)

    def forget(self, keys: Sequence[int]) -> None:
        """Storages are about to be overwritten."""
        for key in keys:
            self._followed.pop(key, None)

    def note(self, op: Op, result: Any) -> None:
        """An eager op has run."""
        found = [known for tensor in op.tensors if (known := self._find(tensor)) is not None]
        if not found:
            return
        if op.written:
            self.forget([key for tensor in op.written if (key := key_of(tensor)) is not None])
            return
        made = op.made(result)
        # A custom op may change more than it returns.
        is_plain = op.name.startswith("aten::")
        if not made or not is_plain or torch.Tag.nondeterministic_seeded in op.func.tags:
            return
        # It runs with values that are not its own, and may raise anything.
        with (
            contextlib.suppress(Exception),
            unobserved(),
            no_torch_function(),
            torch.no_grad(),
        ):
            self._look(op, result, made, found[0].what)

    def _look(self, op: Op, result: Any, made: list[torch.Tensor], what: str) -> None:
        # Those that are no views are in the same order in each result.
        own_ids = set(map(id, made))
        numbers = [n for n, each in enumerate(tensors_in(result)) if id(each) in own_ids]
        padded, real = ([self._again(op, kind, numbers) for kind in kinds] for kinds in _KINDS)
        for number, own in enumerate(made):
            with_padding, with_real = ([each[number] for each in kind] for kind in (padded, real))
            if any(each.shape != own.shape for each in (*with_padding, *with_real)):
                continue
            of_padding, of_real = _any_differs(own, with_padding), _any_differs(own, with_real)
            if (of_padding & of_real).any():
                self._report(
                    BUCKET_PADDING_GARBAGE,
                    f"only the first {what} of the batch are real, and this combines their results "
                    "with those of the others, which are computed from an earlier batch",
                    phase="replay",
                    fix=_SLICE,
                )
            elif of_padding.any():
                self._follow(own, what, with_padding, with_real)

    def _again(self, op: Op, kind: tuple[str, int], numbers: Sequence[int]) -> list[torch.Tensor]:
        """What an op returns for other values of the tensors that are followed."""
        name, number = kind

        def other(value: Any) -> Any:
            known = self._find(value) if isinstance(value, torch.Tensor) else None
            if known is None:
                return value
            contents: tuple[torch.Tensor, ...] = getattr(known, name)
            memory = contents[number % len(contents)]
            return memory.as_strided(value.size(), value.stride(), value.storage_offset())

        args, kwargs = pytree.tree_map(other, (op.args, op.kwargs))
        results = list(tensors_in(op.func(*args, **kwargs)))
        return [results[number] for number in numbers]

    def _find(self, tensor: torch.Tensor) -> _Followed | None:
        known = self._followed.get(key_of(tensor) or 0)
        return None if known is None or known.dtype != tensor.dtype else known


_KINDS = tuple(
    tuple((name, number) for number in range(count)) for name, count in (("padded", 6), ("real", 4))
)
"""The values that ops run with: attribute of ``_Followed``, and number there."""


def _memory(tensor: torch.Tensor, size: int, value: torch.Tensor) -> torch.Tensor:
    """A copy of the memory of a tensor, with another value of it."""
    count = size // max(tensor.element_size(), 1)
    memory = tensor.data.as_strided((count,), (1,), 0).clone()
    memory.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(value)
    return memory


def _any_differs(own: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    found = torch.zeros_like(own, dtype=torch.bool)
    for other in others:
        found |= _differ(own, other)
    return found


def _differ(own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where two tensors differ, but for the noise of additions in another order."""
    if not own.is_floating_point():
        return own != other
    noise = 16 * torch.finfo(own.dtype).eps
    scale = float(own.abs().nan_to_num(posinf=0).max()) if own.numel() else 0.0
    return ~torch.isclose(own, other, rtol=noise, atol=noise * scale, equal_nan=True)
