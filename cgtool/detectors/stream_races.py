"""Work on two streams of a capture that uses the same memory although neither stream waits.

Ops say which tensors they read and write, and the forks and joins of the capture say what comes
before what. A read and a write of the same bytes, or two writes, on streams that do not wait for
each other run in any order in a replay. Memory that is freed is used again by its own stream, which
does not wait for other streams that use it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.effects import effect_of, launches, looks_at_shapes, written_by
from cgtool.observe.tensors import has_shape, key_of, strided
from cgtool.torch_compat.storages import StorageRef, extent

STREAM_RACE_IN_CAPTURE = code("stream-race-in-capture")

Node = TypeVar("Node", bound=Hashable)
_GRAIN = 512
"""The caching allocator rounds sizes up to multiples of this many bytes."""
_REUSED = (
    "the result of this op may get the memory of a tensor that was freed while an op on another "
    "stream still uses it"
)
_FIX_OF_REUSE = (
    "keep the tensor until its own stream has waited for the other one "
    "(`torch.cuda.current_stream().wait_stream(side)`), or call `tensor.record_stream(side)` "
    "before it is freed"
)


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
    stride = tensor.stride()
    elements = extent(tensor.shape, stride)
    return _Region(start, start + elements * size, elements == tensor.numel(), stride)


@dataclass
class _Memory(Generic[Node]):
    """How one storage was used."""

    storage: StorageRef
    """Keeps the storage's key from being reused."""
    writes: dict[tuple[_Region, int], Node] = field(default_factory=dict)
    """The last write by region and stream; earlier ones on that stream come before it."""
    reads: dict[tuple[_Region, int], Node] = field(default_factory=dict)
    allocated_on: int | None = None
    """The stream of the capture that it was allocated on; None if it existed before."""

    def nodes_of_others(self) -> list[Node]:
        """The last nodes on streams other than its own."""
        uses = itertools.chain(self.writes.items(), self.reads.items())
        return [node for (_, stream), node in uses if stream != self.allocated_on]


class Race(NamedTuple, Generic[Node]):
    """An earlier node that uses the same memory and is not ordered with this one."""

    node: Node
    reason: str
    fix: str | None = None


class Accesses(NamedTuple):
    """The tensors of an op; nothing if it launches nothing."""

    reads: Sequence[torch.Tensor] = ()
    writes: Sequence[torch.Tensor] = ()
    """In place."""
    results: Sequence[torch.Tensor] = ()


def accesses(func: Any, name: str, args: Any, kwargs: Any, result: Any) -> Accesses:
    """The memory that an op reads, writes and returns."""
    results = strided(result)
    written = list(filter(has_shape, written_by(func, args, kwargs)))
    if effect_of(func).view or not launches(name, results or written):
        return Accesses()
    own = set(map(id, written))
    given = [] if looks_at_shapes(name) else strided((args, kwargs))
    return Accesses([tensor for tensor in given if id(tensor) not in own], written, results)


class StreamRaces(Generic[Node]):
    """Accesses of the nodes of one capture so far, and the races among them."""

    def __init__(self) -> None:
        self._memory: dict[int, _Memory[Node]] = {}
        self._allocated: dict[tuple[int, int], list[_Memory[Node]]] = {}
        """Memory allocated in the capture, by stream and size of the block."""
        self._is_shared = False
        """Whether a stream has used what another one has allocated."""

    def use(
        self,
        node: Node,
        stream: int,
        used: Accesses,
        is_before: Callable[[Node], bool],
        is_free: Callable[[StorageRef], bool],
    ) -> Iterator[Race[Node]]:
        """A new node on a stream: the races with nodes before it. ``is_before`` says whether an
        earlier node ends before this one starts, ``is_free`` whether a storage was freed, so that
        its memory can be used again."""
        for tensor in used.results:
            if self._is_new(tensor, used):
                yield from self._allocate(tensor, stream, is_before, is_free)
        for tensor in used.reads:
            memory, region = self._memory_of(tensor, stream)
            if memory is not None:
                for other in _overlapping(memory.writes, region):
                    if not is_before(other):
                        yield Race(other, "this op reads what an op on another stream writes")
                memory.reads[region, stream] = node
        for tensor in (*used.writes, *used.results):
            memory, region = self._memory_of(tensor, stream)
            if memory is not None:
                for other in _overlapping(memory.writes, region):
                    if other != node and not is_before(other):
                        yield Race(other, "this op and an op on another stream write this memory")
                for other in _overlapping(memory.reads, region):
                    if other != node and not is_before(other):
                        yield Race(other, "this op overwrites what an op on another stream reads")
                memory.writes[region, stream] = node

    def _memory_of(self, tensor: torch.Tensor, stream: int) -> tuple[_Memory[Node] | None, _Region]:
        key = key_of(tensor)
        region = _region_of(tensor)
        if key is None or not tensor.numel():
            return None, region
        if key not in self._memory:
            self._memory[key] = _Memory(StorageRef(tensor))
        memory = self._memory[key]
        self._is_shared |= memory.allocated_on not in (None, stream)
        return memory, region

    def _is_new(self, tensor: torch.Tensor, used: Accesses) -> bool:
        key = key_of(tensor)
        given = (*used.reads, *used.writes)
        is_known = key is None or key in self._memory or key in map(key_of, given)
        return not is_known and bool(tensor.numel())

    def _allocate(
        self,
        tensor: torch.Tensor,
        stream: int,
        is_before: Callable[[Node], bool],
        is_free: Callable[[StorageRef], bool],
    ) -> Iterator[Race[Node]]:
        """A result is allocated: the race with those that still use the block that it gets.

        The allocator takes a free block of the size and the stream, if there is one. If one of
        several is safe, it may be that one.
        """
        memory = self._memory_of(tensor, stream)[0]
        assert memory is not None
        memory.allocated_on = stream
        blocks = self._allocated.setdefault((stream, -(-memory.storage.bytes // _GRAIN)), [])
        if self._is_shared:
            free = [block for block in blocks if is_free(block.storage)]
            using = [
                [node for node in block.nodes_of_others() if not is_before(node)] for block in free
            ]
            if free:
                least = min(range(len(free)), key=lambda number: len(using[number]))
                blocks.remove(free[least])
                yield from (Race(node, _REUSED, _FIX_OF_REUSE) for node in using[least][:1])
        blocks.append(memory)


def _overlapping(uses: dict[tuple[_Region, int], Node], region: _Region) -> list[Node]:
    return [node for (other, _), node in uses.items() if other.overlaps(region)]


def other_line(frames: Frames) -> tuple[str, ...]:
    """The evidence that names the line of the other op."""
    return (f"the other op is at line {frames[0].line} of {frames[0].file}",) if frames else ()
