"""The tensors from outside that two iterations read: what the code calls them, and where it changes
which tensor or which memory that is."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from cgtool.observe.host_reads import Change, HostReads, Watched
from cgtool.observe.host_values import Value
from cgtool.observe.iteration import Iteration
from cgtool.recapture.ops import OutsideTensor
from cgtool.observe.tensors import has_memory, tensors_in
from cgtool.observe.uses import memory_set_in


class OutsideTensors:
    """Those of two iterations, by the names that the code has for them."""

    def __init__(
        self, first: Iteration, second: Iteration, reads: HostReads, changes: Sequence[Change]
    ) -> None:
        self.first, self.second = first, second
        self.reads, self.changes = reads, changes

    @functools.cached_property
    def made(self) -> set[int]:
        """The storages that the first iteration created, and that outlive it."""
        before = {tensor.storage for op in self.first.ops for tensor in op.outside}
        return {each for each in self.first.storages if each not in before}

    @functools.cached_property
    def given(self) -> set[int]:
        """The storages that the first iteration gave to parameters."""
        before, after = (
            {(tensor.parameter, tensor.storage) for op in ops for tensor in op.outside}
            for ops in (self.first.ops, self.second.ops)
        )
        known = {parameter for parameter, _ in before}
        return {
            storage
            for parameter, storage in after - before
            if parameter is not None and parameter in known
        }

    def name_of(self, tensor: OutsideTensor) -> str | None:
        """The name that changes and that it had before the second iteration, or else after it; or
        that of the generator whose frame held it."""
        names = self._names_of(tensor)
        if names:
            return f"`{names[0]}`"
        suspended = (
            f"a tensor that `{self.reads.watched[number].use.text}` holds where it is suspended"
            for number, value in self.first.state.items()
            if value.kind == "iterator" and tensor.address in value.addresses
        )
        return next(suspended, None)

    def _names_of(self, tensor: OutsideTensor) -> list[str]:
        return [watched.use.text for watched in self._holding(tensor)]

    def _holding(self, tensor: OutsideTensor) -> list[Watched]:
        """What changes and led to it before the second iteration; then what did after it."""
        held = [change for change in self.changes if is_tensor_at(change.before, tensor)]
        held += [change for change in self.changes if is_tensor_at(change.after, tensor)]
        return [change.watched for change in held]

    def was_held(self, tensor: OutsideTensor) -> bool:
        """Whether a name led to it before the second iteration."""
        return any(tensor.address in value.addresses for value in self.first.state.values())

    def changed_at(self, address: int) -> list[Watched]:
        """Where the code changes a name, a container, or the attributes of an object, behind which
        a tensor is."""
        written = {
            number: watched
            for number, watched in enumerate(self.reads.watched)
            if watched.use.written
            # Values written into a tensor.
            and not (watched.use.in_place and isinstance(watched.look_up(), torch.Tensor))
        }
        # What the first iteration left is what the second one reads.
        left = [
            watched
            for number, watched in written.items()
            if number in self.first.state and address in self.first.state[number].addresses
        ]
        return left or [
            watched
            for watched in written.values()
            if any(
                has_memory(tensor) and tensor.data_ptr() == address
                for tensor in tensors_in(watched.look_up())
            )
        ]

    def exchanged_at(self, tensor: OutsideTensor) -> list[Watched]:
        """Where the code assigns objects through which its names lead to a tensor."""
        keys = {key for watched in self._holding(tensor) for key in watched.prefixes if key}
        return [
            each
            for each in self.reads.watched
            if each.use.written and not each.use.in_place and each.key in keys
        ]

    def memory_set(self) -> list[str]:
        """The lines that give a tensor other memory."""
        return places_of(
            (text, code_object.co_filename, line, "")
            for code_object in self.second.ran.codes.values()
            for text, line in memory_set_in(code_object)
        )

    def memory_set_of(self, tensor: OutsideTensor) -> list[str]:
        """Those of them that give it to a parameter, or to a tensor that they name: a container
        that also has the tensor is not the reason then."""
        places = self.memory_set()
        if tensor.storage in self.given:
            return places
        names = self._names_of(tensor)
        named = tuple(f"`{name}{part}` " for name in names for part in ("", ".data"))
        return [place for place in places if place.startswith(named)]


def is_tensor_at(value: Value, tensor: OutsideTensor) -> bool:
    return value.kind == "tensor" and value.content[:2] == (tensor.shape, tensor.address)


def places_of(changed: Iterable[tuple[str, str, int, str]]) -> list[str]:
    """The files and lines at which names are changed, each once; by which function, if by one."""
    texts = (
        f"`{text}` is changed{how} at {Path(file).name}:{line}" for text, file, line, how in changed
    )
    return list(dict.fromkeys(texts))
