"""The replays of a process: how many of each graph, when, and from which lines.

What runs for each replay takes less than two microseconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from cgtool.model.journal import COUNTER, JournalWriter, Replayed
from cgtool.observe.frames import Site, frames_of
from cgtool.observe.waiting import chain_or_waiting
from cgtool.recorder import notes
from cgtool.recorder.note_counters import GraphNotes, NoteCounters, take_noted

_ALWAYS_LOOKED_UP = 64
_LOOKED_UP = 32
"""The line of a replay is looked up for the first 64 of a graph, then for every 32nd."""


class GraphReplays:
    """The replays of one graph."""

    __slots__ = ("chunk", "count", "first", "host", "notes", "number", "offset", "places")

    def __init__(self, number: int) -> None:
        self.number = number
        self.chunk: Any = None
        self.offset = self.count = self.first = self.host = 0
        self.places: dict[tuple[Site, ...], int] = {}
        self.notes: GraphNotes = {}

    def count_in(self, journal: JournalWriter) -> None:
        """Where they are counted."""
        self.chunk, self.offset = journal.counter(self.number)


class Replayable(Protocol):
    replays: GraphReplays


Graph = TypeVar("Graph", bound=Replayable)


def counted_replay(
    original: Callable[[Any], None],
    graphs: dict[int, Graph],
    unseen: Callable[[Any], Graph | None],
    is_first: Callable[[Graph, Any, int], None],
    journal: JournalWriter,
    note_counters: NoteCounters,
) -> Callable[[Any], None]:
    """Takes the place of ``replay`` and counts its calls.

    ``graphs`` by id of the ``CUDAGraph``; ``unseen`` is called with one that is not there, and may
    return it. ``is_first`` is called after the first replay of each, with its host time.
    """
    clock, now = time.perf_counter_ns, time.time_ns
    pack, noted = COUNTER.pack_into, notes.pending
    always, some = _ALWAYS_LOOKED_UP, _LOOKED_UP - 1

    def replay(graph: Any) -> None:
        begin = clock()
        original(graph)
        live = graphs.get(id(graph)) or unseen(graph)
        if live is None:
            return
        last, spent = now(), clock() - begin
        replays = live.replays
        # Python changes threads only at calls: other threads may replay the same graph.
        replays.host += spent
        replays.count = count = replays.count + 1
        if count == 1:
            replays.first = last
            is_first(live, graph, spent)
        pack(replays.chunk, replays.offset, replays.count, replays.first, last, replays.host)
        if count <= always or not count & some:
            # A captured backward is replayed on a thread of autograd's.
            _looked_up(journal, replays, chain_or_waiting(sys._getframe(1)))
        if noted and (values := take_noted()):
            note_counters.add(replays.number, replays.notes, values, last, spent)

    return replay


def _looked_up(journal: JournalWriter, replays: GraphReplays, chain: tuple[Site, ...]) -> None:
    seen = replays.places[chain] = replays.places.get(chain, 0) + 1
    if not seen & (seen - 1):
        journal.append(Replayed(replays.number, frames_of(chain), seen))
