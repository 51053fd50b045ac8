"""The moments that a program marks (``cgtool.event``), and what should not happen after some of
them: compilations, and memory reserved from the device."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

from cgtool.model import clock
from cgtool.model.journal import JournalWriter
from cgtool.model.ledger import READY
from cgtool.model.records import Compiled, Happened
from cgtool.observe.frames import frames_of
from cgtool.observe.waiting import chain_or_waiting
from cgtool.recorder import notes
from cgtool.recorder.addresses import Changes
from cgtool.recorder.recorded_device import RecordedDevice
from cgtool.torch_compat.inductor import CompiledFunction

_MOST = 10_000
"""Events of a process that are kept; of those with a new name, twice as many."""


class Events:
    """The events of this process."""

    def __init__(
        self,
        device: RecordedDevice,
        journal: JournalWriter,
        changes: Callable[[], Changes],
    ) -> None:
        """``changes``: ``Addresses.changes``."""
        self._device = device
        self._changes = changes
        self._journal = journal
        self._ready_after: int | None = None
        self.renew()

    def renew(self) -> None:
        """Start over: the journal is empty."""
        self._names: set[str] = set()
        self._events = 0
        self._device.new_allocations()  # what was there before
        self._replays = itertools.count(1)
        if self._ready_after is not None:
            notes.pending[notes.EVERY_REPLAY] = {}

    def mark_ready(self, after: int) -> None:
        """Mark the event ``ready`` after so many replays of the process."""
        self._ready_after = after
        notes.pending[notes.EVERY_REPLAY] = {}

    def replayed(self) -> None:
        """A graph was replayed, and ``ready`` is not marked yet."""
        if next(self._replays) == self._ready_after:
            notes.pending.pop(notes.EVERY_REPLAY, None)
            self.add(READY)

    def add(self, name: str) -> None:
        """The program marks this moment."""
        now_ns, journal = clock.time_ns(), self._journal
        with journal.protected(), journal.lock:
            self.note_allocations(lines=True)
            is_new = name not in self._names
            self._events += 1
            if self._events <= _MOST or (is_new and len(self._names) < 2 * _MOST):
                self._names.add(name)
                frames = frames_of(chain_or_waiting(sys._getframe(1)))
                journal.append(Happened(now_ns, name, frames, journal.replays(), *self._changes()))
            elif self._events == _MOST + 1:
                journal.lost(f"events after the first {_MOST:,}")

    def compiled(self, what: Callable[[], CompiledFunction | None]) -> None:
        """Something was compiled for this thread."""
        journal = self._journal
        with journal.protected(), journal.lock:
            if (function := what()) is not None:
                frames = frames_of(chain_or_waiting(sys._getframe(1)))
                journal.append(Compiled(*function, frames))

    def note_allocations(self, *, lines: bool = False) -> None:
        """Write what the device knows."""
        if allocations := self._device.new_allocations(lines=lines):
            self._journal.append(*allocations)
