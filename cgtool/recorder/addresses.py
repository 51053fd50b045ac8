"""The memory that graphs use and have not allocated, for as long as they can be replayed.

A graph keeps addresses, and no reference to what was there. The storages that its ops used from
outside its pool are followed by weak references, which run as soon as one is freed: so the line
that frees it is known, and a replay costs nothing. What lies in the pool of a graph is kept by
that. Memory that graphs of ``torch.compile`` use is left out: PyTorch looks at it before each
replay.
"""

from __future__ import annotations

import gc
import itertools
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

from cgtool.model import clock
from cgtool.model.journal import JournalWriter
from cgtool.model.records import MemoryBack, MemoryGone, MemoryUsed
from cgtool.observe.frames import Chain, call_user, frames_of
from cgtool.observe.waiting import chain_or_waiting
from cgtool.recorder.recorded_device import MemoryLife, RecordedDevice
from cgtool.recorder.replays import GraphReplays
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import no_torch_function, storage_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgtool.observe.script.names import Named, Path
    from cgtool.torch_compat.allocator import PoolSegment
    from cgtool.torch_compat.storages import StorageRef

_NAMING_NS = 2_000_000_000
"""After so many nanoseconds in all, memory gets no names anymore."""
_VALUES = 512
_VALUES_EACH = 16
_VALUES_FIRST = 8192
"""So many values are looked at for the names of memory, and so many more for each that has none:
``_VALUES_FIRST`` the first time (50 ms), and later twice as many as have led to one before, if that
is more."""
Changes = tuple[int | None, int | None, int | None]
"""``Event.weights``, ``Event.rebound`` and ``Event.rewritten``."""
NO_LOOK: Changes = None, None, None
_LOOKING_NS = 1_000_000_000
"""After so many nanoseconds in all, looks at what memory holds have pauses."""
_PAUSE = 50
"""So many times as long as the last look took."""
_KINDS = {"parameter": "parameter", "state": "optimizer state", "gradient": "gradient"}
"""By the kind of the path that leads to it."""


class Memory:
    """The memory of a storage."""

    __slots__ = ("digest", "gone", "graphs", "life", "number", "path", "ref")

    def __init__(self, number: int, ref: StorageRef) -> None:
        self.number, self.ref = number, ref
        self.life: MemoryLife | None = None
        """None if it lies in a pool of graphs."""
        self.path: Path | None = None
        """To a parameter, or to state of an optimizer."""
        self.digest: int | None = None
        """Of its bytes, at the last look."""
        self.graphs: set[GraphReplays] = set()
        """Those that use it and can be replayed."""
        self.gone: dict[int, int] | None = None
        """If it was given back: the replays of each graph that uses it, until then."""


def _lies_in(segments: Sequence[tuple[int, int]], address: int) -> bool:
    """``segments``: their addresses and bytes, in order."""
    before = bisect_right(segments, (address, sys.maxsize)) - 1
    return before >= 0 and address < sum(segments[before])


def _replays(memory: Memory) -> dict[int, int]:
    return {graph.number: graph.cells[0] for graph in list(memory.graphs)}


def _with_gradients(everything: Iterator[Named]) -> Iterator[Named]:
    """Each parameter is followed by its gradient, if it has one."""
    for named in everything:
        yield named
        if issubclass(type(named.value), torch.nn.Parameter):
            with no_torch_function():
                grad = named.value.grad
            if grad is not None:
                yield replace(named, value=grad, text=f"{named.text}.grad", kind="gradient")


class Addresses:
    """Follows the memory that the graphs of this process use."""

    def __init__(self, device: RecordedDevice, journal: JournalWriter, patches: Patches) -> None:
        self._device = device
        self._journal = journal
        self._numbers = itertools.count()
        self._known: dict[int, Memory] = {}
        """By ``storage_key``."""
        self._followed = set[Memory]()
        """All, until their last graph has ended."""
        self._is_collecting = self.is_over = False
        self._farthest = 0
        """How many values were looked at until one had the memory that it was looked at for."""
        self._naming_ns = self._looking_ns = self._look_again_ns = 0
        patches.wrap(torch.UntypedStorage, "resize_", self._resize)
        gc.callbacks.append(self._collects)
        patches.callback(gc.callbacks.remove, self._collects)

    def renew(self) -> None:
        """Start over: the journal is empty, and the graphs are those of another process."""
        self._known.clear()
        self._followed.clear()

    def captured(
        self,
        graph: GraphReplays,
        storages: Sequence[StorageRef],
        frame: FrameType,
        segments: Iterable[PoolSegment],
    ) -> list[int]:
        """A graph uses these storages; ``frame`` has captured it. Returns their numbers.
        ``segments``: those of the pools of graphs."""
        kept = sorted(each[3:5] for each in segments)
        memories = [self._there(ref) or Memory(next(self._numbers), ref) for ref in storages]
        for memory in memories:
            memory.graphs.add(graph)  # others that use it may end meanwhile
        graph.memory = memories
        new = [memory for memory in memories if self._known.get(memory.ref.key) is not memory]
        names = self._names({memory.ref.key for memory in new}, frame) if new else {}
        addresses = {memory.ref.address for memory in new}
        lines = self._device.allocated_at(addresses) if addresses else {}
        records: list[MemoryUsed] = []
        for memory in new:
            ref = memory.ref
            self._known[ref.key] = memory
            in_pool = _lies_in(kept, ref.address)
            name, kind = "", ""
            if (named := names.get(ref.key)) is not None:
                name, kind = named.text, _KINDS.get(named.kind, "variable")
                if kind == "parameter" and not issubclass(type(named.value), torch.nn.Parameter):
                    kind = "buffer"
                is_kept = named.kind in ("parameter", "state") and not in_pool
                memory.path = named.path() if is_kept else None
            kind = "pool" if in_pool else kind
            at = lines.get(ref.address, ())
            records.append(MemoryUsed(memory.number, ref.address, ref.bytes, name, kind, at))
            if not in_pool:
                self._followed.add(memory)
        if records:
            self._journal.append(*records)
        for memory in self._followed.intersection(new):
            memory.life = self._device.follow(memory.ref, self._when_gone(memory))
        return [memory.number for memory in memories]

    def _there(self, ref: StorageRef) -> Memory | None:
        known = self._known.get(ref.key)
        return known if known is not None and known.gone is None else None

    def ended(self, graph: GraphReplays) -> None:
        """A graph is replayed no more."""
        memories, graph.memory = graph.memory, []
        for memory in memories:
            memory.graphs.discard(graph)
            if not memory.graphs:
                self._followed.discard(memory)
                if self._known.get(memory.ref.key) is memory:
                    del self._known[memory.ref.key]

    def look(self, graph: GraphReplays) -> None:
        """Look whether the memory that a graph uses is still there."""
        for memory in list(graph.memory):
            if memory.life is not None:
                memory.life.look()

    def _when_gone(self, memory: Memory) -> Callable[[str, Chain, int], None]:
        def gone(how: str, chain: Chain, time_ns: int) -> None:
            if self.is_over or memory.gone is not None or not memory.graphs:
                return
            with self._journal.protected():
                memory.gone = _replays(memory)
                if how == "freed" and self._is_collecting:
                    how = "collected"
                self._journal.append(
                    MemoryGone(memory.number, time_ns, how, frames_of(chain), memory.gone)
                )

        return gone

    def _collects(self, phase: str, _info: dict[str, Any]) -> None:
        self._is_collecting = phase == "start"

    def _resize(self, original: Any, storage: torch.UntypedStorage, size: int) -> Any:
        result, key = call_user(original, storage, size), storage_key(storage)
        memory = self._known.get(key)
        if memory is not None and memory.life is None:
            self._known.pop(key, None)  # the pool keeps what it had
        elif memory is not None and storage.data_ptr() != memory.ref.address:
            chain = chain_or_waiting(sys._getframe())
            self._when_gone(memory)("resized", chain, clock.time_ns())
        elif memory is not None and memory.gone == _replays(memory):
            # Nothing was replayed without it.
            memory.gone = None
            self._journal.append(MemoryBack(memory.number))
        return result

    def changes(self) -> Changes:
        """Seldom enough to cost the program little."""
        began, memories = clock.perf_counter_ns(), list(self._followed)
        paths = [(memory, memory.path) for memory in memories if memory.path is not None]
        if not paths or began < self._look_again_ns:
            return NO_LOOK
        from cgtool.observe.raw_tensors import arithmetic
        from cgtool.observe.tensors import key_of

        bound = [
            memory
            for memory, path in paths
            if not issubclass(type(value := path.look({})), torch.Tensor)
            or key_of(value) == memory.ref.key
        ]
        rewritten: int | None = None
        with arithmetic():  # what intercepts ops leaves a Python object of each storage, an owner
            tensors = [memory.ref.everything() if memory.gone is None else None for memory in bound]
            digests = self._device.digests([each for each in tensors if each is not None])
        for memory in itertools.compress(bound, [each is not None for each in tensors]):
            if (digest := digests.pop(0)) is not None:
                rewritten = (rewritten or 0) + (memory.digest not in (None, digest))
                memory.digest = digest
        now = clock.perf_counter_ns()
        self._looking_ns += now - began
        if self._looking_ns > _LOOKING_NS:
            self._look_again_ns = now + _PAUSE * (now - began)
        return len(paths), len(paths) - len(bound), rewritten

    def _names(self, keys: set[int], frame: FrameType) -> dict[int, Named]:
        """The names of storages, by key: of a parameter, that in its module if it has one."""
        # Most programs never capture.
        from cgtool.observe.script.names import everything_named, stack_of
        from cgtool.observe.tensors import key_of

        names: dict[int, Named] = {}
        began, left = clock.perf_counter_ns(), set(keys)
        values = _with_gradients(everything_named(stack_of(frame)))
        known = 2 * self._farthest if self._naming_ns else _VALUES_FIRST
        most = max(_VALUES + _VALUES_EACH * len(keys), known)
        for number, named in enumerate(itertools.islice(values, most)):
            if not left or self._naming_ns + clock.perf_counter_ns() - began > _NAMING_NS:
                break
            if issubclass(type(named.value), torch.Tensor):
                key = key_of(named.value)
                if key in left:
                    self._farthest = max(self._farthest, number)
                    is_own = named.kind in _KINDS
                    if is_own or key not in names:
                        names[key] = named
                    if is_own or not issubclass(type(named.value), torch.nn.Parameter):
                        left.discard(key)
        self._naming_ns += clock.perf_counter_ns() - began
        return names
