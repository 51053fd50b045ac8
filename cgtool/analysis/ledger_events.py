"""The events that a program marked, and what happened between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.reports import place_of
from cgtool.model.capture import Capture
from cgtool.model.ledger import Event, Ledger


@dataclass(frozen=True)
class EventRow:
    """An event, or the end of a process that has events, and what its process did since the event
    before."""

    process: int | None
    """None if the program has only one."""
    time_ns: int
    """From the start of the command."""
    name: str | None
    """None: the end of the process, or of what is known of it."""
    line: str
    captures: int
    """Captures that began, failed ones included."""
    replays: int | None
    """None if not all are known."""


def event_rows(capture: Capture, ledger: Ledger) -> tuple[EventRow, ...]:
    """The events of all processes, in order of time."""
    processes = {event.process for event in ledger.events}
    rows = [row for process in processes for row in _rows(capture, ledger, process)]
    return tuple(sorted(rows, key=lambda row: (row.time_ns, row.process or 0)))


def _rows(capture: Capture, ledger: Ledger, process: int) -> Iterator[EventRow]:
    graphs = [each for each in ledger.graphs if each.process == process]
    events = [each for each in ledger.events if each.process == process]
    replays = sum(each.replays for each in graphs)
    ended_ns = ledger.processes[process].ended_ns
    # One that was killed may have gone on after the command.
    end_ns = max(ledger.wall_ns if ended_ns is None else ended_ns, events[-1].time_ns)
    begin, end = Event(process, "", 0), Event(process, "", end_ns, replays=replays)
    for before, event in pairwise((begin, *events, end)):
        frames = tuple(capture.frames[frame] for frame in event.frames)
        is_last = event is end
        since = range(before.time_ns, max(event.time_ns, before.time_ns) + is_last)
        uncounted = is_last and any(each.uncounted for each in graphs)
        yield EventRow(
            process if len(ledger.processes) > 1 else None,
            event.time_ns,
            None if is_last else event.name,
            file_line(place_of(frames)),
            captures=sum(each.began_ns in since for each in graphs),
            replays=None if uncounted else max(event.replays - before.replays, 0),
        )
