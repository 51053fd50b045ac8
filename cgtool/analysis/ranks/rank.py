"""The ranks of a program, and the collectives that each of them captured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby
from typing import NamedTuple

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.reports import caller_of, place_of
from cgtool.model.capture import Capture, Frame
from cgtool.model.failure import usage
from cgtool.model.ledger import COMPILE, Collective, Communicator, LedgerGraph, Process

POINT_TO_POINT = ("send", "recv")


_OF_ANY_SIZE = ("all_to_all",)
"""Collectives of which each rank may send as much as it wants."""


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
        """``engine.py:88``: the line that captures; if several lines call its function, the one
        that calls it. With the name that the graph has there."""
        place = self._lines[graph.frames]
        return f"{place} ({graph.key})" if graph.key else place

    def replay_frames(self, graph: LedgerGraph) -> tuple[Frame, ...]:
        """The calls that lead to most of the replays of one of its graphs, or to its capture."""
        places = sorted(graph.replayed_at, key=lambda each: -each.seen)
        frames = places[0].frames if places else graph.frames
        return tuple(self.capture.frames[frame] for frame in frames)

    @cached_property
    def _lines(self) -> dict[tuple[int, ...], str]:
        chains = {each.frames: self.frames(each) for each in self.graphs}
        callers: defaultdict[Frame | None, set[Frame | None]] = defaultdict(set)
        for frames in chains.values():
            callers[place_of(frames)].add(caller_of(frames))
        return {
            numbers: file_line(
                (caller_of(frames) if len(callers[place_of(frames)]) > 1 else None)
                or place_of(frames)
            )
            for numbers, frames in chains.items()
        }

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.process.world_size or 0

    @property
    def unread(self) -> bool:
        """What its graphs contain is not known of all."""
        return any(each.failure is None and each.nodes is None for each in self.graphs)

    @property
    def is_complete(self) -> bool:
        """It has ended by itself, and without an error."""
        return self.process.ended_ns is not None and not self.process.error

    @cached_property
    def in_replay(self) -> LedgerGraph | None:
        """The graph whose replay has begun and did not return."""
        last = self.process.last_replays
        if last and self.process.begun > sum(each.replays for each in self.graphs):
            return next((each for each in self.graphs if each.number == last[-1]), None)
        return None

    def last_of(self, captured: Sequence[Captured]) -> LedgerGraph:
        """The one of these graphs that it replayed last."""
        graphs = {each.graph.number: each.graph for each in captured}
        order = (graphs[each] for each in reversed(self.process.last_replays) if each in graphs)
        return next(order, captured[-1].graph)

    def begun(self, graph: LedgerGraph) -> int:
        """The replays of a graph that have begun."""
        return graph.replays + (graph is self.in_replay)


def ranks_of(captures: Iterable[Capture]) -> list[Rank]:
    """The ranks of a program, in order: of its processes that have one. Raises CgtoolError (exit 2)
    if the captures are not those of one program."""
    ranks: dict[int, Rank] = {}
    first: Capture | None = None
    for capture in captures:
        ledger = capture.ledger
        processes = () if ledger is None else ledger.processes
        graphs: defaultdict[int, list[LedgerGraph]] = defaultdict(list)
        for graph in () if ledger is None else ledger.graphs:
            graphs[graph.process].append(graph)
        # A worker of a DataLoader has the environment of its rank. Of a program that is started
        # several times, the last one counts.
        found: dict[int, Rank] = {}
        for number, process in sorted(
            enumerate(processes), key=lambda each: (bool(graphs[each[0]]), each[1].began_ns)
        ):
            if process.rank is not None:
                rank = Rank(process.rank, process, tuple(graphs[number]), capture)
                found = {
                    known: each
                    for known, each in found.items()
                    if each.world_size == rank.world_size
                }
                found[rank.number] = rank
        if not found:
            continue
        _check_program(first, capture, ranks.keys() & found.keys())
        first = first or capture
        ranks |= found
    _check_world(ranks.values())
    return [ranks[number] for number in sorted(ranks)]


def _check_program(first: Capture | None, other: Capture, twice: Iterable[int]) -> None:
    for rank in twice:
        raise usage(
            f"two of the files have rank {rank}",
            why="they are of different runs",
            fix="give a folder with the files of one run",
        )
    if first is not None and _program(first) != _program(other):
        raise usage(
            f"the files are of different programs: `{_program(first)}` and `{_program(other)}`",
            fix="give a folder with the files of one run",
        )


def _check_world(ranks: Iterable[Rank]) -> None:
    sizes = sorted({each.world_size for each in ranks})
    if len(sizes) > 1:
        raise usage(
            f"the ranks are of different runs: some of {sizes[0]} processes, others of {sizes[-1]}",
            fix="give a folder with the files of one run",
        )


def _program(capture: Capture) -> str:
    """The script or module that a command runs, without its arguments, which may name the rank."""
    command = () if capture.ledger is None else capture.ledger.command
    for at, word in enumerate(command):
        if word == "-m":
            return " ".join(command[at : at + 2])
        if word.endswith(".py"):
            return word.rpartition("/")[2]
    return " ".join(command[:1])


def ranks_text(numbers: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``."""
    ordered = sorted(numbers)
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(ordered), key=lambda each: each[1] - each[0])
    ]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"rank{'s' * (len(ordered) > 1)} {', '.join(texts)}"


class Signature(NamedTuple):
    """What is equal of a collective on all ranks of its communicator."""

    kind: str
    dtype: str
    bytes: int
    root: int | None


class Called(NamedTuple):
    """A collective of a graph, with its size."""

    kind: str
    communicator: Communicator
    dtype: str
    bytes: int
    peer: int | None
    stream: int
    waits: bool
    origin: int | None

    @property
    def signature(self) -> Signature:
        size = 0 if self.kind in _OF_ANY_SIZE else self.bytes
        return Signature(self.kind, self.dtype, size, self.peer)


def called_by(rank: Rank, graph: LedgerGraph) -> list[Called]:
    """The collectives of a graph, without what is sent from rank to rank."""
    ledger = rank.capture.ledger
    if ledger is None or graph.collectives is None or graph.owner == COMPILE:
        return []
    return [
        Called(
            each.kind,
            ledger.communicators[each.communicator],
            each.dtype,
            size,
            each.peer,
            each.stream,
            each.waits,
            each.origin,
        )
        for each, size in zip(
            ledger.collectives[graph.collectives].each, graph.collective_bytes, strict=False
        )
        if each.kind not in POINT_TO_POINT
    ]


class Captured(NamedTuple):
    """The collectives of one graph on one communicator."""

    rank: Rank
    communicator: Communicator
    graph: LedgerGraph
    key: tuple[tuple[tuple[str, str, int | None], ...], tuple[int, ...]]
    """What is equal of them on all ranks, and fast to compare: their kinds, dtypes and roots, and
    their sizes."""

    @property
    def collectives(self) -> list[Called]:
        called = called_by(self.rank, self.graph)
        return [each for each in called if each.communicator == self.communicator]

    @property
    def signatures(self) -> list[Signature]:
        return [each.signature for each in self.collectives]


def by_communicator(rank: Rank) -> dict[Communicator, list[Captured]]:
    """The graphs of a rank that have collectives, by communicator, without those of
    ``torch.compile``: each rank decides for itself when it runs these eagerly and records them
    again."""
    ledger = rank.capture.ledger
    graphs: defaultdict[Communicator, list[Captured]] = defaultdict(list)
    if ledger is None:
        return graphs
    split = cache(lambda number: _split(ledger.collectives[number].each))
    for graph in rank.graphs:
        if graph.collectives is None or graph.owner == COMPILE:
            continue
        for number, kinds, places in split(graph.collectives):
            sizes = graph.collective_bytes
            if places is not None:
                sizes = tuple(sizes[at] if is_sized else 0 for at, is_sized in places)
            communicator = ledger.communicators[number]
            graphs[communicator].append(Captured(rank, communicator, graph, (kinds, sizes)))
    return graphs


_Places = tuple[tuple[int, bool], ...]
"""The numbers of collectives in their graph, and whether their size counts."""


def _split(
    collectives: Sequence[Collective],
) -> list[tuple[int, tuple[tuple[str, str, int | None], ...], _Places | None]]:
    """The collectives of a graph, by the number of their communicator: their kinds, and their
    places; None for all that there are."""
    split: defaultdict[int, list[int]] = defaultdict(list)
    for at, each in enumerate(collectives):
        if each.kind not in POINT_TO_POINT:
            split[each.communicator].append(at)
    parts = []
    for number, numbers in split.items():
        of_one = [collectives[at] for at in numbers]
        kinds = tuple((each.kind, each.dtype, each.peer) for each in of_one)
        places = tuple((at, collectives[at].kind not in _OF_ANY_SIZE) for at in numbers)
        is_all = len(numbers) == len(collectives) and all(is_sized for _, is_sized in places)
        parts.append((number, kinds, None if is_all else places))
    return parts


def group_text(communicator: Communicator) -> str:
    if not communicator.ranks:
        return communicator.name
    return f"{communicator.name} ({ranks_text(communicator.ranks)})"


def place(rank: Rank, collective: Called) -> tuple[str | None, Frame | None]:
    origin = None if collective.origin is None else rank.capture.origins[collective.origin]
    return (None if origin is None else origin.module, place_of(frames_of(rank, collective)))


def frames_of(rank: Rank, collective: Called) -> tuple[Frame, ...]:
    """The calls that lead to a collective; in a backward, to the op of its forward."""
    origins = rank.capture.origins
    origin = None if collective.origin is None else origins[collective.origin]
    if origin is not None and not origin.frames and origin.forward is not None:
        origin = origins[origin.forward]
    return () if origin is None else tuple(rank.capture.frames[each] for each in origin.frames)


def named(rank: Rank, collective: Called, number: int) -> str:
    """``all_reduce #7 of layers.11.mlp (model.py:57)``"""
    module, line = place(rank, collective)
    text = f"{collective.kind} #{number + 1}"
    if module:
        text += f" of {module}"
    return text + (f" ({file_line(line)})" if line is not None else "")


@dataclass(frozen=True)
class Members:
    """The ranks of a communicator that were recorded, at least two."""

    communicator: Communicator
    ranks: dict[int, Rank]
    captured: dict[int, list[Captured]]
    """The graphs of each rank that have collectives of the communicator."""

    @property
    def text(self) -> str:
        """``0 (ranks 0-3)``"""
        return group_text(self.communicator)


def members_of(ranks: Iterable[Rank]) -> Iterator[Members]:
    """The communicators that are in graphs, with those of their ranks that can be compared."""
    compared = [rank for rank in ranks if not rank.unread]
    captured = {rank.number: by_communicator(rank) for rank in compared}
    for each in dict.fromkeys(each for of_rank in captured.values() for each in of_rank):
        # Without its ranks, those that use it.
        members = [
            rank
            for rank in compared
            if (rank.number in each.ranks if each.ranks else each in captured[rank.number])
        ]
        if len(members) > 1:
            yield Members(
                each,
                {rank.number: rank for rank in members},
                {rank.number: captured[rank.number].get(each, []) for rank in members},
            )
