"""The replays of a process: how many of each graph, when, and from which lines.

What runs for each replay takes one microsecond or two where one replay follows another, and up to
ten where the program does so much in between that none of it is in the processor's caches; in C++,
a tenth of a microsecond, up to one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from cgtool.model import clock
from cgtool.model.journal import COUNTER, RING, JournalWriter
from cgtool.model.records import Replayed
from cgtool.observe.frames import Chain, SiteKey, frames_of, key_of
from cgtool.observe.waiting import chain_or_waiting
from cgtool.recorder import notes
from cgtool.recorder.note_counters import GraphNotes, NoteCounters, take_noted
from cgtool.recorder.recorded_device import SteppedGraph


class LookedUp(NamedTuple):
    """Replays of a graph whose line is looked up: that takes longer than to count them.
    Loops repeat their lines after other numbers than these."""

    first: int = 8
    """All up to this number."""
    often: int = 31
    """Every 31st up to ``many``."""
    many: int = 1000
    seldom: int = 499
    """And every 499th after that."""


LOOKED_UP = LookedUp()


class GraphReplays:
    """The replays of one graph."""

    __slots__ = ("cells", "memory", "notes", "number", "order", "places", "stepped")

    cells: memoryview[int]
    """The four numbers of ``COUNTER`` in the journal."""
    order: memoryview[int]
    """The last replays of the process, as ``JournalWriter.order``."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.places: dict[tuple[SiteKey, ...], tuple[Chain, int]] = {}
        """How often each chain was seen, by its keys: to hash a code object takes its bytecode."""
        self.notes: GraphNotes = {}
        self.memory: list[Memory] = []
        """That it uses and has not allocated."""
        self.stepped: SteppedGraph | str | None = None
        """With ``--step``, once it was replayed: its nodes, or why it runs whole."""

    def count_in(self, journal: JournalWriter) -> None:
        """Where they are counted."""
        chunk, offset = journal.counter(self.number)
        self.cells = memoryview(chunk)[offset : offset + COUNTER.size].cast("Q")
        self.order = journal.order

    def stop_stepping(self) -> None:
        """It is replayed no more, or has another executable."""
        stepped, self.stepped = self.stepped, None
        if stepped is not None and not isinstance(stepped, str):
            stepped.close()


TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgtool.recorder.addresses import Addresses, Memory

Graph = TypeVar("Graph", bound=GraphReplays)


def counted_replay(
    original: Callable[[Any], None],
    graphs: dict[int, Graph],
    unseen: Callable[[Any], Graph | None],
    is_first: Callable[[Graph, Any, int], None],
    addresses: Addresses,
    journal: JournalWriter,
    note_counters: NoteCounters,
    every: Callable[[], None],
    native: Any = None,
) -> Callable[[Any], None]:
    """Takes the place of ``replay`` and counts its calls.

    ``graphs`` by id of the ``CUDAGraph``; ``unseen`` is called with one that is not there, and may
    return it. ``is_first`` is called after the first replay of each, with its host time;
    ``addresses`` follows the memory that they use. ``every`` is called after each replay
    while ``notes.EVERY_REPLAY`` is pending.
    ``native``: the module of ``torch_compat.op_watch``, which does the same in C++.
    """
    now_ns, known = clock.perf_counter_ns, graphs.get
    # Some systems take half a microsecond to tell the time.
    since = clock.time_ns() - now_ns()
    noted = notes.pending
    first, often, many, seldom = LOOKED_UP
    # C++ has no frame.
    outwards = 2 if native is None else 1

    def looked_up(live: Graph, graph: Any, _now: int, spent_ns: int) -> None:
        if live.cells[0] == 1:
            is_first(live, graph, spent_ns)
        with journal.protected():
            addresses.look(live)
        # A captured backward is replayed on a thread of autograd's.
        _looked_up(journal, live, chain_or_waiting(sys._getframe(outwards)))

    def note(live: Graph, _graph: Any, now: int, spent_ns: int) -> None:
        if notes.EVERY_REPLAY in noted:
            with journal.protected():
                every()
        if values := take_noted():
            note_counters.add(live.number, live.notes, values, now, spent_ns)

    if native is not None:
        counted: Callable[[Any], None] = native.counted_replay(
            original, graphs, noted, unseen, looked_up, note,
            *(vars(GraphReplays)[name] for name in ("cells", "order", "number")),
            since, *LOOKED_UP,
        )  # fmt: skip
        return counted

    def replay(graph: Any) -> None:
        # Each object that is touched here may come from memory, in a tenth of a microsecond.
        begin = now_ns()
        live = known(id(graph))
        if live is not None:
            # Before it runs: one that hangs has begun.
            order = live.order
            order[0] = begun = order[0] + 1
            order[(begun - 1) % RING + 1] = live.number
        try:
            original(graph)
        except BaseException:
            if live is not None:
                live.order[0] -= 1
            raise
        end = now_ns()
        if live is None:
            live = known(id(graph)) or unseen(graph)
            if live is None:
                return
        # Python changes threads only at calls: other threads may replay the same graph.
        cells = live.cells
        cells[0] = count = cells[0] + 1
        cells[2] = since + end
        cells[3] += end - begin
        if count == 1:
            cells[1] = since + end
        if count <= first or not count % (often if count <= many else seldom):
            looked_up(live, graph, since + end, end - begin)
        if noted:
            note(live, graph, since + end, end - begin)

    return replay


def _looked_up(journal: JournalWriter, replays: GraphReplays, chain: Chain) -> None:
    keys = tuple(map(key_of, chain))
    # The chain is kept, because the keys are those of others once it is gone.
    known, seen = replays.places.get(keys, (chain, 0))
    seen += 1
    replays.places[keys] = known, seen
    if not seen & (seen - 1):
        journal.append(Replayed(replays.number, frames_of(chain), seen))
