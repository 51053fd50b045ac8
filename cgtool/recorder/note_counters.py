"""Counts the replays for which a program noted the same (``cgtool.note``), and the runs of captured
code outside graphs."""

from __future__ import annotations

import numbers
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from cgtool.model.journal import COUNTER, JournalWriter
from cgtool.model.records import Noted, StepRan
from cgtool.model.schema import MAX_MEASURE, MAX_TEXT
from cgtool.observe.waiting import waiting_thread
from cgtool.recorder.notes import Values, pending

_EXACT = 1000
"""Limits the counters of a graph: beyond this many, numbers are rounded to two digits; beyond twice
as many, new notes are counted without numbers."""


class NoteCounter:
    """The replays of a graph, or the runs of code, for which the same was noted."""

    __slots__ = ("chunk", "count", "first", "host", "offset")

    def __init__(self, chunk: Any, offset: int) -> None:
        self.chunk, self.offset = chunk, offset
        self.count = self.first = self.host = 0

    def add(self, last: int, spent: int) -> None:
        self.host += spent
        self.count += 1
        self.first = self.first or last
        COUNTER.pack_into(self.chunk, self.offset, self.count, self.first, last, self.host)

    def take_back(self) -> None:
        """The last was none."""
        self.count -= 1
        COUNTER.pack_into(self.chunk, self.offset, self.count, 0, 0, 0)


GraphNotes = dict[tuple[tuple[str, float | str], ...], NoteCounter]
"""The counters of one graph, by what was noted."""


class NoteCounters:
    """The counters of this process."""

    def __init__(self, journal: JournalWriter) -> None:
        self._journal = journal
        self._refused: set[str] = set()
        self.renew()

    def renew(self) -> None:
        """Start over: the journal is empty."""
        self._number = 0

    def add(self, graph: int, notes: GraphNotes, values: Values, last: int, spent: int) -> None:
        """``values`` were noted for a replay of a graph."""
        try:
            counter = notes.get(tuple(values.items()))
        except TypeError:  # neither a number nor a text, nor hashable
            counter = None
        if counter is None:
            with self._journal.protected(), self._journal.lock:
                counter = self._counter(graph, notes, values)
        if counter is not None:
            counter.add(last, spent)

    def kept(self, values: Values) -> Values:
        """What can be kept of ``values``; the journal says once what cannot."""
        kept = kept_of(values)
        for name in values.keys() - kept.keys() - self._refused:
            self._refused.add(name)
            self._journal.lost(
                f"cgtool.note: `{name}` is neither a number nor a text, or too large "
                f"({type(values[name]).__name__})"
            )
        return kept

    def _counter(self, graph: int, notes: GraphNotes, values: Values) -> NoteCounter:
        kept = self.kept(values)
        if len(notes) >= _EXACT:
            kept = {name: _rounded(value) for name, value in kept.items()}
        if len(notes) >= 2 * _EXACT and tuple(kept.items()) not in notes:
            kept = {}
        key = tuple(kept.items())
        if key not in notes:
            notes[key] = self.new(lambda number: Noted(number, graph, kept))
        return notes[key]

    def new(self, record: Callable[[int], Noted | StepRan]) -> NoteCounter:
        """A new counter; ``record``: what it counts, with its number."""
        with self._journal.lock:
            number, self._number = self._number, self._number + 1
            self._journal.append(record(number))
            return NoteCounter(*self._journal.note_counter(number))


def take_noted() -> Values | None:
    """What this thread noted last, or the one that waits in a backward for this one; only once."""
    noted = pending.pop(get_ident(), None)
    if noted is None and (waiting := waiting_thread()) is not None:
        noted = pending.pop(waiting, None)
    return noted


def kept_of(values: Values) -> Values:
    """What can be kept of what was noted: numbers, and the beginning of texts."""
    return {
        name: str(value[:MAX_TEXT]) if isinstance(value, str) else float(value)
        for name, value in values.items()
        if isinstance(value, str) or _is_number(value)
    }


def _rounded(value: float | str) -> float | str:
    return value if isinstance(value, str) else float(f"{value:.1e}")


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, numbers.Real) and abs(float(value)) <= MAX_MEASURE
    except OverflowError:  # of an integer that no float holds
        return False
