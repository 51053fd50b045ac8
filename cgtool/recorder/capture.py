"""A capture in progress, as the recorder follows it."""

from __future__ import annotations

import gc
import threading
from _thread import get_ident
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cgtool.model import clock
from cgtool.model.capture import Contents, Frames
from cgtool.model.ledger import Collective, MemoryUse
from cgtool.observe.frames import Chain
from cgtool.recorder.costs import Before
from cgtool.recorder.recorded_device import GiveWay, Watch

_now = clock.perf_counter_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgtool.torch_compat.allocator import PoolSegment
    from cgtool.torch_compat.storages import StorageRef


class Start(NamedTuple):
    """The process, just before a capture."""

    before: Before
    reserved_bytes: int | None = None
    time_ns: int = 0


class Capture:
    """A capture, of the thread that makes this object."""

    number: int
    start: Start
    begin_ns: int
    """When it began."""

    def __init__(self, watch: Watch, chain: Chain, is_capturing: Callable[[int], bool]) -> None:
        """``is_capturing``: whether a thread captures."""
        self.ident = get_ident()
        self.overlaps = False
        """Another capture was in progress meanwhile."""
        self.chain = chain
        """The calls that lead to it; empty if PyTorch captures for the program."""
        self.nested: Frames = ()
        """The line that began another capture inside it, first of all, and its callers."""
        self.is_left = False
        """Its code has raised out of ``torch.cuda.graph``, and not in an ``except`` of its own."""
        self.captures: Chain = ()
        """Captures without functions that are over at its end, if there are such."""
        self.thread = threading.current_thread().name
        self.watch = watch
        self.free_bytes: int | None = None
        """Free memory just before the end of the capture, which instantiates the graph."""
        self.contents: Callable[[GiveWay], Contents] | None = None
        """Reads the part of its contents that must be read before its end."""
        self.segments: Sequence[PoolSegment] = ()
        """Those of its pool, after it."""
        self.memory: Sequence[int] = ()
        """The numbers of ``storages``."""
        self.read_ns = self.end_ns = 0
        """When its code had run, and when ``capture_end`` was called."""
        self.stream: int | None = None
        """The handle of the stream that captures."""
        self.collectives: list[tuple[Collective, int]] = []
        """With their sizes."""
        self.collector_ns = 0
        self._collecting = 0
        self._is_capturing = is_capturing
        self._ended_before = set(map(id, _ended_threads()))

    def begin(self, number: int, start: Start, graph: Any) -> None:
        """It has begun."""
        self.number, self.start = number, start
        self.watch.begin(graph)
        gc.callbacks.append(self._collects)
        self.begin_ns = self.read_ns = self.end_ns = _now()

    def _collects(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            # All wait for a collection, but that of another capture belongs to that one.
            here = get_ident()
            is_mine = here == self.ident or not self._is_capturing(here)
            self._collecting = _now() if is_mine else 0
        elif self._collecting:
            self.collector_ns += _now() - self._collecting

    def ended_threads(self) -> list[threading.Thread]:
        """Threads that have ended since it began."""
        return [thread for thread in _ended_threads() if id(thread) not in self._ended_before]

    def read(self) -> None:
        self.contents = self.watch.read()

    def storages(self) -> Sequence[StorageRef]:
        """See ``Watch.storages``."""
        return self.watch.storages() if self.contents is not None else ()

    def uses(self) -> tuple[MemoryUse, ...]:
        """What it does with the memory of these."""
        return tuple(
            MemoryUse(number, *nodes)
            for number, nodes in zip(self.memory, self.watch.uses(), strict=True)
            if any(nodes)
        )

    def stop(self) -> None:
        gc.callbacks.remove(self._collects)
        self.watch.stop()


class Expected(NamedTuple):
    """A capture that is about to begin: what it needs."""

    capture: Capture
    frames: Frames
    """The line that begins it, and its callers."""


def _ended_threads() -> list[threading.Thread]:
    """Threads that have ended but are still referenced, from a list that Python keeps."""
    known = getattr(threading, "_dangling", ())
    if len(known) <= threading.active_count():
        return []
    return [thread for thread in list(known) if thread.ident is not None and not thread.is_alive()]
