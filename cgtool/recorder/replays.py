"""The replays of a process: how many of each graph, when, and from which lines.

What runs for each replay takes less than two microseconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from cgtool.model.journal import COUNTER, JournalWriter, Replayed
from cgtool.observe.frames import Chain, SiteKey, frames_of, key_of
from cgtool.observe.waiting import chain_or_waiting
from cgtool.recorder import notes
from cgtool.recorder.note_counters import GraphNotes, NoteCounters, take_noted

_ALWAYS_LOOKED_UP = 16
_LOOKED_UP = 31
"""The line of a replay is looked up for the first 16 of a graph, then for every 31st: loops repeat
their lines after other numbers."""


class GraphReplays:
    """The replays of one graph."""

    __slots__ = ("chunk", "count", "first", "host", "notes", "number", "offset", "places")

    def __init__(self, number: int) -> None:
        self.number = number
        self.chunk: Any = None
        self.offset = self.count = self.first = self.host = 0
        self.places: dict[tuple[SiteKey, ...], tuple[Chain, int]] = {}
        """How often each chain was seen, by its keys: to hash a code object takes its bytecode."""
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
    clock = time.perf_counter_ns
    # Some systems take half a microsecond to tell the time.
    since = time.time_ns() - clock()
    pack, noted = COUNTER.pack_into, notes.pending
    always, some = _ALWAYS_LOOKED_UP, _LOOKED_UP

    def replay(graph: Any) -> None:
        begin = clock()
        original(graph)
        live = graphs.get(id(graph)) or unseen(graph)
        if live is None:
            return
        end = clock()
        last, spent = since + end, end - begin
        replays = live.replays
        # Python changes threads only at calls: other threads may replay the same graph.
        replays.host += spent
        replays.count = count = replays.count + 1
        if count == 1:
            replays.first = last
            is_first(live, graph, spent)
        pack(replays.chunk, replays.offset, replays.count, replays.first, last, replays.host)
        if count <= always or not count % some:
            # A captured backward is replayed on a thread of autograd's.
            _looked_up(journal, replays, chain_or_waiting(sys._getframe(1)))
        if noted and (values := take_noted()):
            note_counters.add(replays.number, replays.notes, values, last, spent)

    return replay


def _looked_up(journal: JournalWriter, replays: GraphReplays, chain: Chain) -> None:
    keys = tuple(map(key_of, chain))
    # The chain is kept, because the keys are those of others once it is gone.
    known, seen = replays.places.get(keys, (chain, 0))
    seen += 1
    replays.places[keys] = known, seen
    if not seen & (seen - 1):
        journal.append(Replayed(replays.number, frames_of(chain), seen))
