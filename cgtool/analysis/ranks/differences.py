"""The first capture, collective or replay in which the ranks of a program differ.

What ranks must share is the sequence of collectives of each communicator, so that is compared: from
graph to graph, then from replay to replay. Graphs without collectives, and what is sent from one
stage of a pipeline to the next, may differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations
from typing import NamedTuple, TypeVar

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.ranks.rank import (
    Called,
    Captured,
    Members,
    Rank,
    called_by,
    frames_of,
    group_text,
    members_of,
    named,
    place,
    ranks_text,
)
from cgtool.analysis.units import bytes_text, count_text
from cgtool.model.capture import Frame
from cgtool.model.ledger import Communicator, LedgerGraph


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


def differences_of(ranks: Sequence[Rank]) -> tuple[Difference, ...]:
    """The first difference of each communicator, without those that have the same cause."""
    found: list[Difference] = []
    for members in members_of(ranks):
        difference = _of_captures(members) or _of_replays(members)
        found += () if difference is None else (difference,)
    found += _crossed([rank for rank in ranks if not rank.unread])
    found.sort(key=lambda each: each.graph[1])
    causes: dict[tuple[tuple[int, ...], tuple[int, int]], Difference] = {}
    for each in found:
        causes.setdefault((each.ranks, each.graph), each)
    return tuple(causes.values())


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


def _of_captures(members: Members) -> Difference | None:
    """The first graph whose collectives differ. How they are spread over graphs may differ."""
    ranks, captured = members.ranks, members.captured
    if len({tuple(each.key for each in graphs) for graphs in captured.values()}) == 1:
        return None
    flat = {
        rank: [each for graph in graphs for each in zip(*graph.key, strict=False)]
        for rank, graphs in captured.items()
    }
    longest = max(flat.values(), key=len)
    if all(
        each == longest or (not ranks[rank].is_complete and each == longest[: len(each)])
        for rank, each in flat.items()
    ):
        return None
    values: dict[int, Hashable] = {}
    for at in range(max(map(len, captured.values())) + 1):
        values = {
            rank: graphs[at].key if at < len(graphs) else None
            for rank, graphs in captured.items()
            # One that was ended might have gone on.
            if at < len(graphs) or ranks[rank].is_complete
        }
        if len(set(values.values())) > 1:
            break
    else:
        return None
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
        group = members.text
        frames = frames or rank.frames(graph)
        cause = rank.number, graph.number
        return Difference(kind, sides.ranks, sentence, each, group, frames, cause)

    if _lacks(of_odd, of_most):
        graph = of_most[0].graph
        sentence = (
            f"{subject} did not capture the graph of {most.line(graph)}, which {sides.others} did"
        )
        if failed := _failed_at(odd, most.frames(graph)):
            sentence += f": {failed}"
        elif odd.process.error:
            sentence += f": ended with {odd.process.error}"
        return difference("capture", sentence, most, graph)
    if _lacks(of_most, of_odd):
        graph = of_odd[0].graph
        before = [each.key for each in captured[odd.number][:at]]
        again = " again" if of_odd[0].key in before else ""
        sentence = (
            f"{subject} captured the graph of {odd.line(graph)}{again}, and {sides.others} did not"
        )
        return difference("capture", sentence, odd, graph)
    mine, theirs = of_odd[0], of_most[0]
    what, rank, collective = _first_collective(odd, mine, most, theirs)
    count = f"another graph at {odd.line(mine.graph)} than {sides.others}"
    if mine.graph.nodes != theirs.graph.nodes:
        nodes = count_text(mine.graph.nodes or 0, "node")
        count = f"{nodes}, {sides.others} {theirs.graph.nodes or 0:,}"
    graph = mine.graph if rank is odd else theirs.graph
    sentence = f"{subject} captured {count}: {what}"
    return difference("collective", sentence, rank, graph, frames_of(rank, collective))


def _lacks(some: Sequence[Captured], others: Sequence[Captured]) -> bool:
    """Whether the first of ``others`` was not captured, and what follows was."""
    return not some or (
        len(some) < len(others) and any(some[0].key == each.key for each in others[1:])
    )


def _failed_at(rank: Rank, frames: tuple[Frame, ...]) -> str | None:
    """The error that ended a capture by the same calls."""
    failed = (each for each in rank.graphs if each.failure)
    return next((each.failure for each in failed if rank.frames(each) == frames), None)


def _graph_text(rank: Rank, captured: Sequence[Captured], at: int) -> str:
    if at >= len(captured):
        return f"captured {count_text(at, 'graph')} with collectives of this group"
    graph = captured[at]
    kinds = Counter(map(_size_text, graph.collectives))
    texts = [f"{count}x {text}" if count > 1 else text for text, count in kinds.items()]
    more = f" and {len(texts) - 4} more" if len(texts) > 4 else ""
    return (
        f"captured {count_text(graph.graph.nodes or 0, 'node')} at {rank.line(graph.graph)}: "
        f"{', '.join(texts[:4])}{more}"
    )


def _size_text(each: Called) -> str:
    """``all_reduce of 32 B float32``"""
    return f"{each.kind} of {bytes_text(each.bytes)} {each.dtype}" if each.dtype else each.kind


def _first_collective(
    odd: Rank, mine: Captured, most: Rank, theirs: Captured
) -> tuple[str, Rank, Called]:
    """What differs first between the collectives of two graphs; the rank that has it."""
    # With their lines, which tell equal ones apart.
    there, here = (
        [(each.signature, place(graph.rank, each)) for each in graph.collectives]
        for graph in (theirs, mine)
    )
    matched = SequenceMatcher(None, there, here, autojunk=False)
    of_theirs, of_mine = theirs.signatures, mine.signatures
    tag, start, end, own, own_end = next(
        # Equal ones may be called by other lines.
        each
        for each in matched.get_opcodes()
        if of_theirs[each[1] : each[2]] != of_mine[each[3] : each[4]]
    )
    if Counter(of_theirs) == Counter(of_mine):
        pairs = enumerate(zip(of_mine, of_theirs, strict=True))
        first = next(at for at, pair in pairs if pair[0] != pair[1])
        collective = mine.collectives[first]
        ours, others = (
            f"{_size_text(each)} ({file_line(place(rank, each)[1])})"
            for rank, each in ((odd, collective), (most, theirs.collectives[first]))
        )
        return f"#{first + 1} is {ours} instead of {others}", odd, collective
    if tag == "delete" or (tag == "replace" and end - start > own_end - own):
        collective = theirs.collectives[start]
        return f"{named(most, collective, start)} is missing", most, collective
    collective = mine.collectives[own]
    if tag == "insert" or own_end - own > end - start:
        return f"{named(odd, collective, own)} is only there", odd, collective
    other = theirs.collectives[start]
    name = named(odd, collective, own)
    if collective.kind != other.kind:
        return f"{name} is there instead of {named(most, other, start)}", odd, collective
    if collective.dtype != other.dtype or collective.bytes != other.bytes:
        ours, others = (f"{bytes_text(each.bytes)} of {each.dtype}" for each in (collective, other))
        return f"{name} has {ours} instead of {others}", odd, collective
    return f"{name} has root {collective.peer} instead of {other.peer}", odd, collective


def _of_replays(members: Members) -> Difference | None:
    """The first replay in which ranks with equal captures differ."""
    captured = members.captured
    if any(each.graph.uncounted for graphs in captured.values() for each in graphs):
        return None
    contents = {rank: tuple(each.key for each in of) for rank, of in captured.items()}
    if len(set(contents.values())) > 1:
        # The same collectives, in other graphs: the same graph has no number on all ranks.
        return None
    return _order(members) or _counts(members)


def _order(members: Members) -> Difference | None:
    """The first replay that is of another graph, among those whose order is known."""
    ranks, captured = members.ranks, members.captured
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
            members.text,
            odd.replay_frames(mine),
            (odd.number, mine.number),
        )
    return None


_SHOWN = 3


def _replays_text(
    rank: Rank, captured: Sequence[Captured], windows: Mapping[int, tuple[int, list[int]]], at: int
) -> str:
    first, window = windows[rank.number]
    start = max(at - first - _SHOWN, 0)
    shown = [rank.line(captured[each].graph) for each in window[start : at - first + _SHOWN]]
    return f"replays {first + start + 1:,} and on: {', '.join(shown)}"


def _counts(members: Members) -> Difference | None:
    """The first graph that a rank which ended normally replayed less often than another has
    begun to, or that two of these replayed differently often."""
    ranks, captured = members.ranks, members.captured
    ended = [rank for rank in ranks.values() if rank.is_complete]
    for at in range(min(map(len, captured.values())) if ended else 0):
        begun = {rank: ranks[rank].begun(captured[rank][at].graph) for rank in ranks}
        least = min(begun[rank.number] for rank in ended)
        # One that was ended before might have gone on.
        counts = {
            rank: count for rank, count in begun.items() if ranks[rank].is_complete or count > least
        }
        if len(set(counts.values())) < 2:
            continue
        groups = _groups(counts)
        sides = _sides(groups)
        odd, most = ranks[sides.odd[0]], ranks[sides.most[0]]
        graph = captured[odd.number][at].graph
        more = max((odd, most), key=lambda rank: counts[rank.number])
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
            members.text,
            more.replay_frames(captured[more.number][at].graph),
            (odd.number, graph.number),
        )
    return None


class _Issued(NamedTuple):
    """A collective that a rank captures, the n-th of its communicator."""

    communicator: Communicator
    number: int
    graph: LedgerGraph
    collective: Called


def _crossed(ranks: Sequence[Rank]) -> Iterator[Difference]:
    """Collectives of two communicators that two ranks run in different orders, each of them one
    after the other on one stream of one graph: each rank waits for the other."""
    orders: defaultdict[tuple[Communicator, ...], dict[tuple[Communicator, ...], Rank]]
    orders = defaultdict(dict)
    for rank in ranks:
        issued = [each.communicator for each in _issued(rank)] if _uses_several(rank) else []
        for pair in combinations(dict.fromkeys(issued), 2):
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


def _uses_several(rank: Rank) -> bool:
    """Whether a graph has collectives of several communicators."""
    known = rank.capture.ledger.collectives if rank.capture.ledger else ()
    return any(len({each.communicator for each in graph.each}) > 1 for graph in known)


def _issued(rank: Rank) -> list[_Issued]:
    counts = Counter[Communicator]()
    issued: list[_Issued] = []
    for graph in rank.graphs:
        for each in called_by(rank, graph):
            issued.append(_Issued(each.communicator, counts[each.communicator], graph, each))
            counts[each.communicator] += 1
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
        f"{named(rank, each.collective, each.number)} of group {group_text(each.communicator)}"
        for rank, each in ((one, mine), (other, theirs))
    )
    return Difference(
        "collective",
        (one.number, other.number),
        f"rank {one.number} runs {here} first, rank {other.number} {there}: each waits for the "
        "other",
        (f"rank {one.number}: {here}", f"rank {other.number}: {there}"),
        f"{group_text(mine.communicator)}, {group_text(theirs.communicator)}",
        frames_of(one, mine.collective) or one.frames(mine.graph),
        (one.number, mine.graph.number),
    )
