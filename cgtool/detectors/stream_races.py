"""Work on two streams of a capture that uses the same memory although neither stream waits.

Ops say which tensors they read and write, and the forks and joins of the capture say what comes
before what. A read and a write of the same bytes, or two writes, on streams that do not wait for
each other run in any order in a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.effects import effect_of, launches, looks_at_shapes, written_by
from cgtool.observe.tensors import has_shape, key_of, strided
from cgtool.torch_compat.storages import StorageRef

STREAM_RACE_IN_CAPTURE = code("stream-race-in-capture")

Node = TypeVar("Node", bound=Hashable)


class _Region(NamedTuple):
    """The bytes of a storage that a tensor takes."""

    start: int
    """Byte offset of its first element."""
    end: int
    is_dense: bool
    """Whether it takes all bytes from start to end."""
    strides: tuple[int, ...]

    def overlaps(self, other: _Region) -> bool:
        """True only if they are sure to share an element: those of two strided tensors may
        interleave."""
        return (
            self == other
            or (self.is_dense and self.start <= other.start < self.end)
            or (other.is_dense and other.start <= self.start < other.end)
        )


def _region_of(tensor: torch.Tensor) -> _Region:
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    extent = (1 + sum((count - 1) * stride for count, stride in steps)) * size
    return _Region(start, start + extent, extent == tensor.numel() * size, tensor.stride())


@dataclass
class _Memory(Generic[Node]):
    """How one storage was used."""

    storage: StorageRef
    """Keeps the storage's key from being reused."""
    writes: dict[tuple[_Region, int], Node] = field(default_factory=dict)
    """The last write by region and stream; earlier ones on that stream come before it."""
    reads: dict[tuple[_Region, int], Node] = field(default_factory=dict)


class Race(NamedTuple, Generic[Node]):
    """An earlier node that uses the same memory and is not ordered with this one."""

    node: Node
    reason: str


def accesses(
    func: Any, name: str, args: Any, kwargs: Any, result: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that an op reads and those that it writes; two empty lists if it launches
    nothing."""
    results = strided(result)
    written = list(filter(has_shape, written_by(func, args, kwargs)))
    if effect_of(func).view or not launches(name, results or written):
        return [], []
    own = set(map(id, written))
    given = [] if looks_at_shapes(name) else strided((args, kwargs))
    return [tensor for tensor in given if id(tensor) not in own], [*written, *results]


class StreamRaces(Generic[Node]):
    """What the nodes of one capture read and wrote so far."""

    def __init__(self) -> None:
        self._memory: dict[int, _Memory[Node]] = {}

    def use(
        self,
        node: Node,
        stream: int,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
        is_before: Callable[[Node], bool],
    ) -> Iterator[Race[Node]]:
        """A new node on a stream: the races with nodes before it. ``is_before`` says whether an
        earlier node ends before this one starts."""
        for tensor in reads:
            memory, region = self._memory_of(tensor)
            if memory is not None:
                for other in _overlapping(memory.writes, region):
                    if not is_before(other):
                        yield Race(other, "this op reads what an op on another stream writes")
                memory.reads[region, stream] = node
        for tensor in writes:
            memory, region = self._memory_of(tensor)
            if memory is not None:
                for other in _overlapping(memory.writes, region):
                    if other != node and not is_before(other):
                        yield Race(other, "this op and an op on another stream write this memory")
                for other in _overlapping(memory.reads, region):
                    if other != node and not is_before(other):
                        yield Race(other, "this op overwrites what an op on another stream reads")
                memory.writes[region, stream] = node

    def _memory_of(self, tensor: torch.Tensor) -> tuple[_Memory[Node] | None, _Region]:
        key = key_of(tensor)
        region = _region_of(tensor)
        if key is None or not tensor.numel():
            return None, region
        if key not in self._memory:
            self._memory[key] = _Memory(StorageRef(tensor))
        return self._memory[key], region


def _overlapping(uses: dict[tuple[_Region, int], Node], region: _Region) -> list[Node]:
    return [node for (other, _), node in uses.items() if other.overlaps(region)]


def other_line(frames: Frames) -> tuple[str, ...]:
    """The evidence that names the line of the other op."""
    return (f"the other op is at line {frames[0].line} of {frames[0].file}",) if frames else ()
