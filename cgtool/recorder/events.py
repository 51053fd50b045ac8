"""The moments that a program marks (``cgtool.event``)."""

from __future__ import annotations

import sys

from cgtool.model import clock
from cgtool.model.journal import Happened, JournalWriter
from cgtool.observe.frames import chain_of, frames_of

_MOST = 10_000
"""Events of a process that are kept; of names that are new, twice as many."""


class Events:
    """The events of this process."""

    def __init__(self, journal: JournalWriter) -> None:
        self._journal = journal
        self.renew()

    def renew(self) -> None:
        """Start over: the journal is empty."""
        self._names: set[str] = set()
        self._count = 0

    def add(self, name: str) -> None:
        """The program marks this moment."""
        now_ns, journal = clock.time_ns(), self._journal
        with journal.protected(), journal.lock:
            is_new = name not in self._names
            self._count += 1
            if self._count <= _MOST or (is_new and len(self._names) < 2 * _MOST):
                self._names.add(name)
                frames = frames_of(chain_of(sys._getframe(1)))
                journal.append(Happened(now_ns, name, frames, journal.replays()))
            elif self._count == _MOST + 1:
                journal.lost(f"events after the first {_MOST:,}")
