"""The ranks of a program compared: the first capture, collective or replay in which they differ.

What ranks must share is the sequence of collectives of each communicator, so that is compared: from
graph to graph, then from replay to replay. Graphs without collectives, and what is sent from one
stage of a pipeline to the next, may differ, and are only counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, cached_property
from itertools import combinations, groupby
from statistics import median_low
from typing import NamedTuple, TypeVar

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.reports import caller_of, place_of
from cgtool.analysis.units import bytes_text, count_text
from cgtool.findings import code
from cgtool.model.capture import Capture, Frame
from cgtool.model.failure import usage
from cgtool.model.finding import Finding
from cgtool.model.ledger import Collective, Communicator, LedgerGraph, Process

RANK_DIVERGENT_REPLAY = code("rank-divergent-replay")
_POINT_TO_POINT = ("send", "recv")
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

    def begun(self, graph: LedgerGraph) -> int:
        """The replays of a graph that have begun."""
        return graph.replays + (graph is self.in_replay)


class _Signature(NamedTuple):
    """What is equal of a collective on all ranks of its communicator."""

    kind: str
    dtype: str
    bytes: int
    root: int | None


class _Captured(NamedTuple):
    """The collectives of one graph on one communicator."""

    graph: LedgerGraph
    collectives: tuple[Collective, ...]
    signatures: tuple[_Signature, ...]


@dataclass(frozen=True)
class Difference:
    """Where the ranks of a communicator first differ."""

    kind: str
    """``capture``, ``collective``, ``replay`` or ``order``."""
    ranks: tuple[int, ...]
    """Those that differ from most; all, if there is no majority."""
    sentence: str
    each: tuple[str, ...]
    """What each rank did: ``ranks 0-2: all_reduce of 4.0 KiB at model.py:57``."""
    group: str
    """The process group, by PyTorch's name and its ranks."""
    frames: tuple[Frame, ...]
    """Of the line that captures, or that calls the collective."""
    graph: tuple[int, int]
    """A rank that has the graph in which they differ, and its number there."""


@dataclass(frozen=True)
class RankRow:
    """One rank."""

    rank: int
    pid: int
    graphs: int
    failed: int
    nodes: int
    """Of all graphs."""
    collectives: int
    replays: int
    last_capture: str
    last_replay: str
    """The line that captured what was replayed last."""
    in_replay: bool
    """That replay has begun, and did not return."""
    end: str
    """``finished``, the error that ended it, or what else is known."""


@dataclass(frozen=True)
class RankGraphRow:
    """A graph that ranks captured at the same line, with the same name, in the same order."""

    owner: str
    line: str
    key: str
    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    """This and the next two: the fewest and the most of a rank; one number if they are equal."""
    collectives: tuple[int, ...]
    replays: tuple[int, ...]
    slowest: int | None
    """The rank whose replays take longest: on the GPU with ``--times``, else on the host."""
    slowest_ns: int | None
    median_ns: int | None
    """Of all ranks."""


@dataclass(frozen=True)
class RanksReport:
    """The screen of ``cgtool run --ranks``."""

    command: str
    simulated: bool
    world_size: int
    sentence: str
    differences: tuple[Difference, ...]
    ranks: tuple[RankRow, ...]
    graphs: tuple[RankGraphRow, ...]
    notes: tuple[str, ...]


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


def ranks_report(captures: Sequence[Capture], command: str) -> RanksReport:
    """The ranks of a program, compared. Raises CgtoolError (exit 2) if there are none."""
    ranks = ranks_of(captures)
    if not ranks:
        raise usage(
            "no rank was recorded",
            why="a process has a rank if it calls torch.distributed.init_process_group, or if its "
            "launcher sets RANK and WORLD_SIZE; older versions of cgtool did not record it",
            fix="cgtool run -- torchrun --nproc-per-node N train.py",
        )
    differences = differences_of(ranks)
    size = max(ranks[0].world_size, ranks[-1].number + 1)
    return RanksReport(
        command=command,
        simulated=any(each.environment.simulated for each in captures),
        world_size=size,
        sentence=_sentence(ranks, differences),
        differences=differences,
        ranks=tuple(map(_row, ranks)),
        graphs=tuple(_graph_rows(ranks)),
        notes=tuple(_notes(ranks, size)),
    )


def rank_findings(capture: Capture) -> Iterator[Finding]:
    """The differences between the ranks of a program, as findings."""
    ranks = ranks_of([capture])
    for each in differences_of(ranks) if len(ranks) > 1 else ():
        yield Finding(
            RANK_DIVERGENT_REPLAY,
            each.sentence,
            each.frames,
            phase="replay",
            evidence=(*each.each, f"process group {each.group}"),
        )


def _sentence(ranks: Sequence[Rank], differences: Sequence[Difference]) -> str:
    if differences:
        return differences[0].sentence
    early = [each for each in ranks if not each.is_complete]
    if failed := [each for each in early if each.process.error]:
        # The connections of the others end with it.
        first = min(failed, key=lambda each: each.process.ended_ns or 0)
        return (
            f"rank {first.number} ended with {first.process.error}, after "
            f"{count_text(sum(each.replays for each in first.graphs), 'replay')}"
        )
    if len(ranks) == 1:
        return f"only rank {ranks[0].number} was recorded: there is nothing to compare it with"
    same = "capture and replay the same collectives"
    if not any(each.collectives for rank in ranks for each in rank.graphs):
        same = "have no collectives in their graphs"
    return f"{count_text(len(ranks), 'rank')} {same}"


def _notes(ranks: Sequence[Rank], size: int) -> Iterator[str]:
    known = {each.number for each in ranks}
    if missing := [number for number in range(size) if number not in known]:
        yield f"not recorded, and not compared: {ranks_text(missing)} of {size:,}"
    if unread := [each.number for each in ranks if each.unread]:
        yield f"the nodes of some graphs of {ranks_text(unread)} were not recorded: not compared"


def _row(rank: Rank) -> RankRow:
    graphs, process = rank.graphs, rank.process
    last = process.last_replays[-1:]
    replayed = next((each for each in graphs if each.number in last), None)
    end = "finished" if process.ended_ns is not None else "killed, or still running"
    return RankRow(
        rank.number,
        process.pid,
        graphs=sum(each.failure is None for each in graphs),
        failed=sum(each.failure is not None for each in graphs),
        nodes=sum(each.nodes or 0 for each in graphs),
        collectives=sum(len(each.collectives) for each in graphs),
        replays=sum(each.replays for each in graphs),
        last_capture=rank.line(graphs[-1]) if graphs else "",
        last_replay=rank.line(replayed) if replayed else "",
        in_replay=rank.in_replay is not None,
        end=process.error or end,
    )


def _graph_rows(ranks: Sequence[Rank]) -> Iterator[RankGraphRow]:
    alike: defaultdict[tuple[str, str, str, int], list[tuple[int, LedgerGraph]]]
    alike = defaultdict(list)
    for rank in ranks:
        before = Counter[Hashable]()
        for graph in rank.graphs:
            if graph.failure is None and not graph.holds_a_pool:
                name = graph.owner, rank.line(graph), graph.key
                alike[*name, before[name]].append((rank.number, graph))
                before[name] += 1
    for (owner, place, key, _), graphs in alike.items():
        times = {rank: time for rank, graph in graphs if (time := _mean_ns(graph)) is not None}
        slowest = max(times, key=lambda rank: times[rank]) if len(times) > 1 else None
        yield RankGraphRow(
            owner,
            place,
            key,
            tuple(rank for rank, _ in graphs),
            _range(graph.nodes or 0 for _, graph in graphs),
            _range(len(graph.collectives) for _, graph in graphs),
            _range(graph.replays for _, graph in graphs),
            slowest,
            None if slowest is None else times[slowest],
            median_low(times.values()) if len(times) > 1 else None,
        )


def _mean_ns(graph: LedgerGraph) -> int | None:
    if graph.timed_replays:
        return graph.replay_gpu_ns // graph.timed_replays
    later = graph.replays - 1
    if later < 1 or graph.first_replay_host_ns is None:
        return None
    return (graph.replay_host_ns - graph.first_replay_host_ns) // later


def _range(counts: Iterable[int]) -> tuple[int, ...]:
    known = set(counts)
    return tuple(sorted({min(known), max(known)}))


def ranks_text(numbers: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``."""
    ordered = sorted(numbers)
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(ordered), key=lambda each: each[1] - each[0])
    ]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"rank{'s' * (len(ordered) > 1)} {', '.join(texts)}"


# --- what is compared


def differences_of(ranks: Sequence[Rank]) -> tuple[Difference, ...]:
    """The first difference of each communicator, without those that have the same cause."""
    compared = [rank for rank in ranks if not rank.unread]
    collectives = {rank.number: _by_communicator(rank) for rank in compared}
    communicators = dict.fromkeys(each for of_rank in collectives.values() for each in of_rank)
    found: list[Difference] = []
    for communicator in communicators:
        members = [
            rank
            for rank in compared
            if rank.number in communicator.ranks
            or (not communicator.ranks and communicator in collectives[rank.number])
        ]
        captured = {rank.number: collectives[rank.number].get(communicator, []) for rank in members}
        if len(members) > 1:
            by_number = {rank.number: rank for rank in members}
            difference = _of_captures(communicator, by_number, captured) or _of_replays(
                communicator, by_number, captured
            )
            found += () if difference is None else (difference,)
    found += _crossed(compared, collectives)
    found.sort(key=lambda each: each.graph[1])
    causes: dict[tuple[tuple[int, ...], tuple[int, int]], Difference] = {}
    for each in found:
        causes.setdefault((each.ranks, each.graph), each)
    return tuple(causes.values())


def _by_communicator(rank: Rank) -> dict[Communicator, list[_Captured]]:
    known = rank.capture.ledger.communicators if rank.capture.ledger else ()
    split = cache(_split)
    graphs: defaultdict[Communicator, list[_Captured]] = defaultdict(list)
    for graph in rank.graphs:
        for number, collectives, signatures in split(graph.collectives):
            graphs[known[number]].append(_Captured(graph, collectives, signatures))
    return dict(graphs)


def _split(
    collectives: tuple[Collective, ...],
) -> list[tuple[int, tuple[Collective, ...], tuple[_Signature, ...]]]:
    """The collectives of a graph, by the number of their communicator."""
    split: defaultdict[int, list[Collective]] = defaultdict(list)
    for each in collectives:
        if each.kind not in _POINT_TO_POINT:
            split[each.communicator].append(each)
    return [
        (number, tuple(of_one), tuple(map(_signature, of_one))) for number, of_one in split.items()
    ]


def _signature(each: Collective) -> _Signature:
    size = 0 if each.kind in _OF_ANY_SIZE else each.bytes
    return _Signature(each.kind, each.dtype, size, each.peer)


_Value = TypeVar("_Value", bound=Hashable)


def _groups(values: Mapping[int, _Value]) -> list[tuple[list[int], _Value]]:
    """The ranks with equal values, most ranks first."""
    groups: dict[_Value, list[int]] = {}
    for rank, value in values.items():
        groups.setdefault(value, []).append(rank)
    return sorted(((ranks, value) for value, ranks in groups.items()), key=lambda g: -len(g[0]))


class _Sides(NamedTuple):
    """The ranks that differ, and those that they differ from."""

    odd: list[int]
    most: list[int]
    ranks: tuple[int, ...]
    """``Difference.ranks``"""
    others: str
    """``the others``, or the ranks."""


def _sides(groups: Sequence[tuple[list[int], object]]) -> _Sides:
    most, odd = groups[0][0], groups[1][0]
    if len(most) == len(odd):
        return _Sides(odd, most, tuple(sorted(most + odd)), ranks_text(most))
    return _Sides(odd, most, tuple(odd), "the others" if len(groups) == 2 else ranks_text(most))


def _of_captures(
    communicator: Communicator,
    ranks: Mapping[int, Rank],
    captured: Mapping[int, Sequence[_Captured]],
) -> Difference | None:
    """The first graph whose collectives differ. How they are spread over graphs may differ."""
    flat = {
        rank: tuple(each for graph in graphs for each in graph.signatures)
        for rank, graphs in captured.items()
    }
    if len(set(flat.values())) == 1:
        return None
    at = 0
    while len(_groups(values := _nth(captured, at))) == 1:
        at += 1
    groups = _groups(values)
    sides = _sides(groups)
    odd, most = ranks[sides.odd[0]], ranks[sides.most[0]]
    of_odd, of_most = captured[odd.number][at:], captured[most.number][at:]
    subject = ranks_text(sides.odd)

    def difference(
        kind: str, sentence: str, rank: Rank, graph: LedgerGraph, frames: tuple[Frame, ...] = ()
    ) -> Difference:
        each = tuple(
            f"{ranks_text(numbers)}: {_graph_text(ranks[numbers[0]], captured[numbers[0]], at)}"
            for numbers, _ in groups
        )
        group = _group_text(communicator)
        frames = frames or rank.frames(graph)
        cause = rank.number, graph.number
        return Difference(kind, sides.ranks, sentence, each, group, frames, cause)

    is_skipped = not of_odd or (
        len(of_most) > 1
        and of_odd[0].signatures == of_most[1].signatures
        and len(of_odd) < len(of_most)
    )
    is_extra = not of_most or (
        len(of_odd) > 1
        and of_most[0].signatures == of_odd[1].signatures
        and len(of_most) < len(of_odd)
    )
    if is_skipped:
        graph = of_most[0].graph
        sentence = (
            f"{subject} did not capture the graph of {most.line(graph)}, which {sides.others} did"
        )
        if failed := _failed_at(odd, most.frames(graph)):
            sentence += f": {failed}"
        elif odd.process.error:
            sentence += f": ended with {odd.process.error}"
        return difference("capture", sentence, most, graph)
    if is_extra:
        graph = of_odd[0].graph
        before = [each.signatures for each in captured[odd.number][:at]]
        again = " again" if of_odd[0].signatures in before else ""
        sentence = (
            f"{subject} captured the graph of {odd.line(graph)}{again}, and {sides.others} did not"
        )
        return difference("capture", sentence, odd, graph)
    mine, theirs = of_odd[0], of_most[0]
    what, rank, collective = _first_collective(odd, mine, most, theirs, sides.others)
    count = f"captured {count_text(mine.graph.nodes or 0, 'node')}"
    if mine.graph.nodes != theirs.graph.nodes:
        count += f", {sides.others} {theirs.graph.nodes or 0:,}"
    else:
        count += f" at {odd.line(mine.graph)}, as {sides.others} did, but"
    separator = "" if count.endswith("but") else ":"
    frames = _frames_of(rank, collective)
    graph = mine.graph if rank is odd else theirs.graph
    return difference("collective", f"{subject} {count}{separator} {what}", rank, graph, frames)


def _nth(
    captured: Mapping[int, Sequence[_Captured]], at: int
) -> dict[int, tuple[_Signature, ...] | None]:
    return {
        rank: graphs[at].signatures if at < len(graphs) else None
        for rank, graphs in captured.items()
    }


def _failed_at(rank: Rank, frames: tuple[Frame, ...]) -> str | None:
    """The error that ended a capture by the same calls."""
    failed = (each for each in rank.graphs if each.failure)
    return next((each.failure for each in failed if rank.frames(each) == frames), None)


def _graph_text(rank: Rank, captured: Sequence[_Captured], at: int) -> str:
    if at >= len(captured):
        return f"captured {count_text(at, 'graph')} with collectives of this group"
    graph = captured[at]
    kinds = Counter(
        f"{each.kind} of {bytes_text(each.bytes)} {each.dtype}".strip()
        for each in graph.collectives
    )
    texts = [f"{count}x {text}" if count > 1 else text for text, count in kinds.items()]
    more = f" and {len(texts) - 4} more" if len(texts) > 4 else ""
    return (
        f"captured {count_text(graph.graph.nodes or 0, 'node')} at {rank.line(graph.graph)}: "
        f"{', '.join(texts[:4])}{more}"
    )


def _group_text(communicator: Communicator) -> str:
    if not communicator.ranks:
        return communicator.name
    return f"{communicator.name} ({ranks_text(communicator.ranks)})"


def _first_collective(
    odd: Rank, mine: _Captured, most: Rank, theirs: _Captured, others: str
) -> tuple[str, Rank, Collective]:
    """What differs first between the collectives of two graphs; the rank that has it."""
    matched = SequenceMatcher(None, theirs.signatures, mine.signatures, autojunk=False)
    tag, start, end, own, own_end = next(
        each for each in matched.get_opcodes() if each[0] != "equal"
    )
    if Counter(theirs.signatures) == Counter(mine.signatures):
        first = next(
            at
            for at, pair in enumerate(zip(mine.signatures, theirs.signatures, strict=True))
            if pair[0] != pair[1]
        )
        collective = mine.collectives[first]
        return (
            f"{_named(odd, collective, first)} comes first, on {others} "
            f"{_named(most, theirs.collectives[first], first)}",
            odd,
            collective,
        )
    if tag == "delete" or (tag == "replace" and end - start > own_end - own):
        # Of several that are equal, the one that the line tells apart.
        start = _missing(odd, mine, most, theirs, start)
        collective = theirs.collectives[start]
        return f"{_named(most, collective, start)} is missing", most, collective
    collective = mine.collectives[own]
    if tag == "insert" or own_end - own > end - start:
        return f"{_named(odd, collective, own)} is only there", odd, collective
    other = theirs.collectives[start]
    name = _named(odd, collective, own)
    if collective.kind != other.kind:
        return f"{name} is there, on {others} {_named(most, other, start)}", odd, collective
    if collective.dtype != other.dtype or collective.bytes != other.bytes:
        here, there = (f"{bytes_text(each.bytes)} of {each.dtype}" for each in (collective, other))
        return f"{name} has {here}, on {others} {there}", odd, collective
    return f"{name} has root {collective.peer}, on {others} {other.peer}", odd, collective


def _missing(odd: Rank, mine: _Captured, most: Rank, theirs: _Captured, start: int) -> int:
    places = [_place(odd, each) for each in mine.collectives]
    matcher = SequenceMatcher(None, [_place(most, e) for e in theirs.collectives], places, False)
    codes = [each for each in matcher.get_opcodes() if each[0] != "equal"]
    if len(codes) == 1 and codes[0][0] == "delete":
        at = codes[0][1]
        rest = theirs.signatures[:at] + theirs.signatures[codes[0][2] :]
        if rest == mine.signatures:
            return at
    return start


def _place(rank: Rank, collective: Collective) -> tuple[str | None, Frame | None]:
    origin = None if collective.origin is None else rank.capture.origins[collective.origin]
    return (None if origin is None else origin.module, place_of(_frames_of(rank, collective)))


def _frames_of(rank: Rank, collective: Collective) -> tuple[Frame, ...]:
    """The calls that lead to a collective; in a backward, to the op of its forward."""
    origins = rank.capture.origins
    origin = None if collective.origin is None else origins[collective.origin]
    if origin is not None and not origin.frames and origin.forward is not None:
        origin = origins[origin.forward]
    return () if origin is None else tuple(rank.capture.frames[each] for each in origin.frames)


def _named(rank: Rank, collective: Collective, number: int) -> str:
    """``all_reduce #7 of layers.11.mlp (model.py:57)``"""
    module, line = _place(rank, collective)
    text = f"{collective.kind} #{number + 1}"
    if module:
        text += f" of {module}"
    return text + (f" ({file_line(line)})" if line is not None else "")


# --- replays


def _of_replays(
    communicator: Communicator,
    ranks: Mapping[int, Rank],
    captured: Mapping[int, Sequence[_Captured]],
) -> Difference | None:
    """The first replay in which ranks with equal captures differ."""
    if any(each.graph.uncounted for graphs in captured.values() for each in graphs):
        return None
    contents = {rank: tuple(each.signatures for each in of) for rank, of in captured.items()}
    if len(set(contents.values())) > 1:
        # The same collectives, in other graphs: the same graph has no number on all ranks.
        return None
    return _order(communicator, ranks, captured) or _counts(communicator, ranks, captured)


def _order(
    communicator: Communicator,
    ranks: Mapping[int, Rank],
    captured: Mapping[int, Sequence[_Captured]],
) -> Difference | None:
    """The first replay that is of another graph, among those whose order is known."""
    windows: dict[int, tuple[int, list[int]]] = {}
    for number, rank in ranks.items():
        place = {each.graph.number: at for at, each in enumerate(captured[number])}
        window = [place[graph] for graph in rank.process.last_replays if graph in place]
        total = sum(rank.begun(each.graph) for each in captured[number])
        windows[number] = total - len(window), window
    begin = max(first for first, _ in windows.values())
    ends = {rank: first + len(window) for rank, (first, window) in windows.items()}
    for at in range(begin, min(ends.values())):
        values = {rank: window[at - first] for rank, (first, window) in windows.items()}
        if len(set(values.values())) == 1:
            continue
        groups = _groups(values)
        sides = _sides(groups)
        odd, most = ranks[sides.odd[0]], ranks[sides.most[0]]
        mine, theirs = (captured[rank.number][values[rank.number]].graph for rank in (odd, most))
        verb = "replays" if len(sides.odd) == 1 else "replay"
        return Difference(
            "order",
            sides.ranks,
            f"{ranks_text(sides.odd)} {verb} the graph of {odd.line(mine)} as replay {at + 1:,} "
            f"of the group, {sides.others} that of {most.line(theirs)}",
            tuple(
                f"{ranks_text(numbers)}: "
                f"{_replays_text(ranks[numbers[0]], captured[numbers[0]], windows, at)}"
                for numbers, _ in groups
            ),
            _group_text(communicator),
            odd.frames(mine),
            (odd.number, mine.number),
        )
    return None


_SHOWN = 3


def _replays_text(
    rank: Rank, captured: Sequence[_Captured], windows: Mapping[int, tuple[int, list[int]]], at: int
) -> str:
    first, window = windows[rank.number]
    start = max(at - first - _SHOWN, 0)
    shown = [rank.line(captured[each].graph) for each in window[start : at - first + _SHOWN]]
    return f"replays {first + start + 1:,} and on: {', '.join(shown)}"


def _counts(
    communicator: Communicator,
    ranks: Mapping[int, Rank],
    captured: Mapping[int, Sequence[_Captured]],
) -> Difference | None:
    """The first graph that ranks which ended normally replayed more or less often."""
    ended = {number: rank for number, rank in ranks.items() if rank.is_complete}
    for at in range(min(map(len, captured.values()))):
        counts = {rank: captured[rank][at].graph.replays for rank in ended}
        if len(set(counts.values())) < 2:
            continue
        groups = _groups(counts)
        sides = _sides(groups)
        odd, most = ranks[sides.odd[0]], ranks[sides.most[0]]
        graph = captured[odd.number][at].graph
        return Difference(
            "replay",
            sides.ranks,
            f"{ranks_text(sides.odd)} replayed the graph of {odd.line(graph)} "
            f"{count_text(counts[odd.number], 'time')}, {sides.others} {counts[most.number]:,}",
            tuple(
                f"{ranks_text(numbers)}: {count_text(count, 'replay')} of "
                f"{ranks[numbers[0]].line(captured[numbers[0]][at].graph)}"
                for numbers, count in groups
            ),
            _group_text(communicator),
            odd.frames(graph),
            (odd.number, graph.number),
        )
    return None


# --- two communicators


class _Issued(NamedTuple):
    """A collective that a rank captures, the n-th of its communicator."""

    communicator: Communicator
    number: int
    graph: LedgerGraph
    collective: Collective


def _crossed(
    ranks: Sequence[Rank], collectives: Mapping[int, Mapping[Communicator, object]]
) -> Iterator[Difference]:
    """Collectives of two communicators that two ranks run in different orders, each of them one
    after the other on one stream of one graph: each rank waits for the other."""
    orders: defaultdict[tuple[Communicator, ...], dict[tuple[Communicator, ...], Rank]]
    orders = defaultdict(dict)
    for rank in ranks:
        if len(collectives[rank.number]) < 2:
            continue
        issued = [each.communicator for each in _issued(rank)]
        for pair in combinations(collectives[rank.number], 2):
            order = tuple(each for each in issued if each in pair)
            orders[tuple(sorted(pair, key=str))].setdefault(order, rank)
    for both, by_order in orders.items():
        for one, other in combinations(by_order.values(), 2):
            first, second = (
                [each for each in _issued(rank) if each.communicator in both]
                for rank in (one, other)
            )
            for mine, theirs in zip(first, second, strict=False):
                if mine[:2] == theirs[:2]:
                    continue
                if _waits(first, mine, theirs) and _waits(second, theirs, mine):
                    yield _crossing(one, mine, other, theirs)
                    return
                break


def _issued(rank: Rank) -> list[_Issued]:
    known = rank.capture.ledger.communicators if rank.capture.ledger else ()
    counts = Counter[Communicator]()
    issued: list[_Issued] = []
    for graph in rank.graphs:
        for each in graph.collectives:
            if each.kind not in _POINT_TO_POINT:
                communicator = known[each.communicator]
                issued.append(_Issued(communicator, counts[communicator], graph, each))
                counts[communicator] += 1
    return issued


def _waits(issued: Sequence[_Issued], before: _Issued, after: _Issued) -> bool:
    """Whether a rank runs ``before``, waits for it, and only then runs ``after``."""
    if not before.collective.waits:
        return False
    return any(
        each[:2] == after[:2]
        and each.graph is before.graph
        and each.collective.stream == before.collective.stream
        for each in issued
    )


def _crossing(one: Rank, mine: _Issued, other: Rank, theirs: _Issued) -> Difference:
    here, there = (
        f"{_named(rank, each.collective, each.number)} of group {_group_text(each.communicator)}"
        for rank, each in ((one, mine), (other, theirs))
    )
    return Difference(
        "collective",
        (one.number, other.number),
        f"rank {one.number} runs {here} first, rank {other.number} {there}: each waits for the "
        "other",
        (f"rank {one.number}: {here}", f"rank {other.number}: {there}"),
        f"{_group_text(mine.communicator)}, {_group_text(theirs.communicator)}",
        _frames_of(one, mine.collective) or one.frames(mine.graph),
        (one.number, mine.graph.number),
    )
