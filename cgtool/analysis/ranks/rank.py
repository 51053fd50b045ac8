"""The ranks of a program, and the collectives that each of them captured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby
from typing import Any, NamedTuple

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.reports import lines_of, place_of
from cgtool.analysis.units import bytes_text
from cgtool.model.capture import Capture, Frame
from cgtool.model.failure import CgtoolError, usage
from cgtool.model.ledger import COMPILE, Collective, Communicator, LedgerGraph, Process


@dataclass(frozen=True, eq=False)
class Rank:
    """One rank of a program."""

    number: int
    process: Process
    graphs: tuple[LedgerGraph, ...]
    capture: Capture
    """Has the tables that its graphs refer to."""

    def frames(self, graph: LedgerGraph) -> tuple[Frame, ...]:
        """The calls that lead to the capture of one of its graphs."""
        return tuple(self.capture.frames[frame] for frame in graph.frames)

    def line(self, graph: LedgerGraph) -> str:
        """``engine.py:88``: the line that captures, with the name that the graph has there."""
        place = file_line(self._lines[self.frames(graph)])
        return f"{place} ({graph.key})" if graph.key else place

    @cached_property
    def _lines(self) -> dict[tuple[Frame, ...], Frame | None]:
        return lines_of(map(self.frames, self.graphs))

    @property
    def unread(self) -> bool:
        """What its graphs contain is not known of all."""
        return any(each.failure is None and each.nodes is None for each in self.graphs)

    @property
    def is_complete(self) -> bool:
        """It has ended by itself, and without an error."""
        return self.process.ended_ns is not None and not self.process.error

    @cached_property
    def last_replayed(self) -> LedgerGraph | None:
        """The graph whose replay has begun last."""
        last = self.process.last_replays[-1:]
        return next((each for each in self.graphs if each.number in last), None)

    @cached_property
    def in_replay(self) -> LedgerGraph | None:
        """The graph whose replay has begun and did not return."""
        hangs = self.process.begun > sum(each.replays for each in self.graphs)
        return self.last_replayed if hangs else None

    def begun(self, graphs: Iterable[LedgerGraph]) -> int:
        """The replays of these that have begun."""
        return sum(each.replays + (each is self.in_replay) for each in graphs)


def ranks_of(captures: Iterable[Capture]) -> list[Rank]:
    """The ranks of a program, in order: of its processes that have one. Raises CgtoolError (exit 2)
    if the captures are not those of one program."""
    ranks: dict[int, Rank] = {}
    for capture in captures:
        ledger = capture.ledger
        graphs: defaultdict[int, list[LedgerGraph]] = defaultdict(list)
        for graph in () if ledger is None else ledger.graphs:
            graphs[graph.process].append(graph)
        found = [
            Rank(process.rank, process, tuple(graphs[number]), capture)
            for number, process in enumerate(() if ledger is None else ledger.processes)
            if process.rank is not None
        ]
        # Of a program that is started several times, the last one counts.
        found.sort(key=lambda rank: (bool(rank.graphs), rank.process.began_ns))
        size = found[-1].process.world_size if found else None
        own = {rank.number: rank for rank in found if rank.process.world_size == size}
        for number in ranks.keys() & own.keys():
            raise _different(f"two of the files have rank {number}")
        ranks |= own
    programs = sorted({_program(each.capture) for each in ranks.values()})
    if len(programs) > 1:
        raise _different(f"the files are of different programs: {', '.join(programs)}")
    sizes = sorted({each.process.world_size or 0 for each in ranks.values()})
    if len(sizes) > 1:
        raise _different(f"some files are of {sizes[0]} ranks, others of {sizes[-1]}")
    return [ranks[number] for number in sorted(ranks)]


def _different(problem: str) -> CgtoolError:
    return usage(problem, fix="give a folder with the files of one run")


def _program(capture: Capture) -> str:
    """The script that a command runs, without its arguments, which may name the rank."""
    command = capture.ledger.command if capture.ledger else ()
    return next((word.rpartition("/")[2] for word in command if word.endswith(".py")), "")


def ranks_text(numbers: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``."""
    ordered = sorted(numbers)
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(ordered), key=lambda each: each[1] - each[0])
    ]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"rank{'s' * (len(ordered) > 1)} {', '.join(texts)}"


class Call(NamedTuple):
    """A collective of a graph, as a rank calls it."""

    rank: Rank
    graph: LedgerGraph
    collective: Collective
    bytes: int

    @property
    def signature(self) -> tuple[str, str, int | None, int]:
        """What is equal of it on all ranks."""
        each = self.collective
        return each.kind, each.dtype, each.root, self.bytes

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The calls that lead to it; in a backward, to the op of its forward."""
        capture, number = self.rank.capture, self.collective.origin
        if number is None:
            return ()
        origin = capture.origins[number]
        if not origin.frames and origin.forward is not None:
            origin = capture.origins[origin.forward]
        return tuple(capture.frames[frame] for frame in origin.frames)

    @property
    def where(self) -> str:
        """``of layers.11.mlp (model.py:57)``"""
        number, line = self.collective.origin, file_line(place_of(self.frames))
        module = None if number is None else self.rank.capture.origins[number].module
        return f" of {module}" * bool(module) + f" ({line})" * bool(line)

    @property
    def text(self) -> str:
        """``all_reduce of 4.0 KiB float32``"""
        kind, dtype, root, size = self.signature
        text = f"{kind} of {bytes_text(size)} {dtype}" if size else kind
        return text if root is None else f"{text} with root {root}"


def calls_of(rank: Rank, graph: LedgerGraph) -> list[Call]:
    """The collectives of a graph, without those of ``torch.compile``: each rank decides for itself
    when it runs these eagerly and records them again."""
    ledger = rank.capture.ledger
    if ledger is None or graph.collectives is None or graph.owner == COMPILE:
        return []
    each = zip(ledger.collectives[graph.collectives].each, graph.collective_bytes, strict=False)
    return [Call(rank, graph, call, size) for call, size in each]


class Captured(NamedTuple):
    """The collectives of one graph on one communicator."""

    rank: Rank
    communicator: Communicator
    graph: LedgerGraph
    key: Any
    """Their signatures, in a form that is fast to compare."""

    @property
    def calls(self) -> list[Call]:
        calls = calls_of(self.rank, self.graph)
        return [each for each in calls if each.collective.communicator == self.communicator]

    @property
    def line(self) -> str:
        return self.rank.line(self.graph)


def _by_communicator(rank: Rank) -> dict[Communicator, list[Captured]]:
    ledger = rank.capture.ledger
    graphs: defaultdict[Communicator, list[Captured]] = defaultdict(list)
    if ledger is None:
        return graphs

    @cache
    def split(number: int) -> list[tuple[Communicator, object, list[int]]]:
        each = ledger.collectives[number].each
        places: defaultdict[Communicator, list[int]] = defaultdict(list)
        for at, call in enumerate(each):
            places[call.communicator].append(at)
        return [
            (
                communicator,
                tuple((each[at].kind, each[at].dtype, each[at].root) for at in numbers),
                numbers,
            )
            for communicator, numbers in places.items()
        ]

    for graph in rank.graphs:
        if graph.collectives is not None and graph.owner != COMPILE:
            sizes = graph.collective_bytes
            for communicator, kinds, numbers in split(graph.collectives):
                # Of a damaged file, there may be fewer.
                key = kinds, tuple([sizes[at] for at in numbers if at < len(sizes)])
                graphs[communicator].append(Captured(rank, communicator, graph, key))
    return graphs


def group_text(communicator: Communicator) -> str:
    """``0 (ranks 0-3)``"""
    if not communicator.ranks:
        return communicator.name
    return f"{communicator.name} ({ranks_text(communicator.ranks)})"


@dataclass(frozen=True)
class Members:
    """The ranks of a communicator that were recorded, at least two."""

    communicator: Communicator
    ranks: dict[int, Rank]
    captured: dict[int, list[Captured]]
    """The graphs of each rank that have collectives of the communicator."""

    def begun(self, rank: int) -> int:
        """The replays of these graphs that have begun."""
        return self.ranks[rank].begun(each.graph for each in self.captured[rank])


def members_of(ranks: Iterable[Rank]) -> Iterator[Members]:
    """The communicators that are in graphs, with those of their ranks that can be compared."""
    compared = {rank.number: rank for rank in ranks if not rank.unread}
    captured = {number: _by_communicator(rank) for number, rank in compared.items()}
    for each in dict.fromkeys(each for of_rank in captured.values() for each in of_rank):
        # Without its ranks, those that use it.
        members = [
            number
            for number in compared
            if (number in each.ranks if each.ranks else each in captured[number])
        ]
        if len(members) > 1:
            yield Members(
                each,
                {number: compared[number] for number in members},
                {number: captured[number].get(each, []) for number in members},
            )
