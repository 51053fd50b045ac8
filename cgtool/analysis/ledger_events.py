"""The events that a program marked, and what happened between them and after them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.ledger_findings import by_line
from cgtool.analysis.reports import place_of
from cgtool.analysis.units import bytes_text, time_text
from cgtool.model.capture import Capture, Frame
from cgtool.model.ledger import UNSEEN, Ledger


class Happening(NamedTuple):
    """What should not happen in a steady state."""

    process: int
    time_ns: int
    """When it began, from the start of the command."""
    frames: tuple[Frame, ...]
    """The calls that lead to it, innermost first."""
    text: str
    """What distinguishes it: its size, its name, its reason."""
    bytes: int = 0


def captures_of(capture: Capture, ledger: Ledger) -> list[Happening]:
    """The captures of a program, failed ones included."""
    return [
        Happening(entry.process, entry.began_ns, frames, entry.failure or entry.key)
        for line in by_line(capture, ledger)
        for frames, entry in zip(line.calls, line.entries, strict=True)
        if entry.owner != UNSEEN
    ]


def compiles_of(capture: Capture, ledger: Ledger) -> list[Happening]:
    """The compilations of a program."""
    return [
        Happening(
            each.process,
            each.began_ns,
            tuple(capture.frames[frame] for frame in each.frames),
            f"{each.compiler} of {each.name or 'a function'}, {time_text(each.duration_ns)}"
            + (f", because {each.because}" if each.because else ""),
        )
        for each in ledger.compiles
    ]


def allocations_of(capture: Capture, ledger: Ledger) -> list[Happening]:
    """Memory that a program's allocator reserved."""
    return [
        Happening(
            each.process,
            each.time_ns,
            tuple(capture.frames[frame] for frame in each.frames),
            bytes_text(each.bytes),
            each.bytes,
        )
        for each in ledger.allocations
    ]


Happenings = Callable[[Capture, Ledger], Sequence[Happening]]

# --- after an event


def first_times(ledger: Ledger) -> dict[str, dict[int, int]]:
    """When each event first occurred, by name and process: in the process itself, or else in the
    one that started it. Processes without any are left out."""
    first: dict[str, dict[int, int]] = defaultdict(dict)
    for event in ledger.events:
        first[event.name].setdefault(event.process, event.time_ns)
    by_pid: dict[int, int] = {}
    parents: list[int | None] = []
    for number, process in enumerate(ledger.processes):
        parents.append(by_pid.get(process.parent))
        by_pid[process.pid] = number
    found: dict[str, dict[int, int]] = {}
    for name, own in first.items():
        times = found[name] = {}
        for number, parent in enumerate(parents):
            time_ns = own.get(number, None if parent is None else times.get(parent))
            if time_ns is not None:
                times[number] = time_ns
    return found


def since(times: Mapping[int, int], happenings: Sequence[Happening]) -> list[Happening]:
    """What happened after an event, of which these are the ``first_times``."""
    return [
        each for each in happenings if each.process in times and each.time_ns > times[each.process]
    ]


def counts_since(ledger: Ledger, happenings: Sequence[Happening]) -> dict[str, int]:
    """How much happened after each event, by its name."""
    return {name: len(since(times, happenings)) for name, times in first_times(ledger).items()}


# --- between events


@dataclass(frozen=True)
class EventRow:
    """An event, or the end of a process that has events, and what its process did since the event
    before."""

    process: int | None
    """None if the program has only one, or if it has a rank."""
    rank: int | None
    time_ns: int
    """From the start of the command."""
    name: str | None
    """None: the end of the process, or of what is known of it."""
    line: str
    """Or the line of the program's output that it was found by."""
    captures: int
    """Captures that began, failed ones included."""
    replays: int | None
    """None if not all are known."""
    compiles: int
    allocations: int
    """How often memory was reserved on the device."""
    allocated_bytes: int
    given_back: int
    """Storages that graphs use, and that were freed or resized."""
    weights: int | None
    """As of ``Event``."""
    rebound: int | None
    rewritten: int | None


def event_rows(capture: Capture, ledger: Ledger) -> tuple[EventRow, ...]:
    """The events of all processes, in order of time."""
    processes = dict.fromkeys(event.process for event in ledger.events)
    rows = [row for process in processes for row in _rows(capture, ledger, process)]
    return tuple(sorted(rows, key=lambda row: (row.time_ns, row.rank or row.process or 0)))


def _rows(capture: Capture, ledger: Ledger, process: int) -> Iterator[EventRow]:
    graphs = [each for each in ledger.graphs if each.process == process]
    events = [each for each in ledger.events if each.process == process]
    times = [event.time_ns for event in events]

    def between(happenings: Iterable[Happening]) -> list[list[Happening]]:
        """What happened before each event, and after the last."""
        found: list[list[Happening]] = [[] for _ in range(len(events) + 1)]
        for each in happenings:
            if each.process == process:
                found[bisect_left(times, each.time_ns)].append(each)
        return found

    captures, compiles, allocations = (
        between(of(capture, ledger)) for of in (captures_of, compiles_of, allocations_of)
    )
    given_back = between(
        Happening(each.process, each.gone_ns, (), each.name)
        for each in ledger.memory
        if each.gone_ns is not None
    )
    ended_ns, rank = ledger.processes[process].ended_ns, ledger.processes[process].rank
    # One that was killed may have gone on after the command.
    end_ns = max(ledger.wall_ns if ended_ns is None else ended_ns, times[-1])
    is_counted = not any(each.uncounted for each in graphs)
    replays = [0, *(each.replays for each in events)]
    replays.append(sum(each.replays for each in graphs) if is_counted else None)
    for at, event in enumerate((*events, None)):
        before, after = replays[at : at + 2]
        frames = tuple(capture.frames[frame] for frame in event.frames) if event else ()
        yield EventRow(
            process if len(ledger.processes) > 1 and rank is None else None,
            rank,
            event.time_ns if event else end_ns,
            event.name if event else None,
            file_line(place_of(frames)) or (event.output if event else ""),
            captures=len(captures[at]),
            replays=None if before is None or after is None else max(after - before, 0),
            compiles=len(compiles[at]),
            allocations=len(allocations[at]),
            allocated_bytes=sum(each.bytes for each in allocations[at]),
            given_back=len(given_back[at]),
            weights=event.weights if event else None,
            rebound=event.rebound if event else None,
            rewritten=event.rewritten if event else None,
        )
