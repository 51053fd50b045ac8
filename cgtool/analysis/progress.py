"""How a program's replays are spread over time, seen from outside while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from cgtool.model.journal import read_journals

_FIRST_PAUSE = 0.05
"""Seconds between two moments of a program that has just begun."""
_MOST = 100
"""Moments that are kept. Where there are more, every second one is left out, and the pauses become
twice as long."""


class Progress:
    """How many replays each graph had at moments while its program ran.

    It is read from the counters of the journals, so it costs the program nothing.
    """

    def __init__(self, folder: Path) -> None:
        """``folder``: of the journals."""
        self._folder = folder
        self._ended = threading.Event()
        self._moments: list[tuple[int, dict[tuple[Path, int], int]]] = []

    def follow(self) -> None:
        """Look again and again, until ``end`` is called."""
        pause = _FIRST_PAUSE
        while not self._ended.wait(pause):
            if self.look(time.time_ns()):
                pause *= 2

    def look(self, time_ns: int) -> bool:
        """Note how many replays there are, at this time of the system clock. True if earlier
        moments were left out."""
        counts = {
            (each.log, number): count
            for each in read_journals(self._folder)
            for number, (count, *_) in enumerate(each.counters().graphs)
            if count
        }
        self._moments.append((time_ns, counts))
        if len(self._moments) <= _MOST:
            return False
        del self._moments[1::2]
        return True

    def end(self) -> None:
        """The program has ended."""
        self._ended.set()

    def of(self, log: Path, number: int) -> Iterator[tuple[int, int]]:
        """Times of the system clock (ns), and how many replays there were of a graph: before and
        after each change. ``log``: of the journal of its process."""
        seen = [(time_ns, counts.get((log, number), 0)) for time_ns, counts in self._moments]
        is_told = False
        for before, after in pairwise(seen):
            if before[1] == after[1]:
                is_told = False
                continue
            if not is_told and before[1]:
                yield before
            yield after
            is_told = True
