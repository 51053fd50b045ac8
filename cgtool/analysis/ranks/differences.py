"""The first capture, collective or replay in which the ranks of a program differ.

What ranks must share is the sequence of collectives of each communicator, so that is compared: from
graph to graph, then from replay to replay. Graphs without collectives, and what is sent from one
stage of a pipeline to the next, may differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from typing import NamedTuple

from cgtool.analysis.ranks.rank import (
    Call,
    Captured,
    Members,
    Rank,
    calls_of,
    group_text,
    members_of,
    ranks_text,
)
from cgtool.analysis.units import count_text
from cgtool.model.capture import Frame
from cgtool.model.ledger import Communicator


@dataclass(frozen=True)
class Difference:
    """Where the ranks of a communicator first differ."""

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
    found = [each for members in members_of(ranks) if (each := _first(members)) is not None]
    found += _crossed([rank for rank in ranks if not rank.unread])
    found.sort(key=lambda each: each.graph[1])
    causes: dict[tuple[tuple[int, ...], tuple[int, int]], Difference] = {}
    for each in found:
        causes.setdefault((each.ranks, each.graph), each)
    return tuple(causes.values())


def _first(members: Members) -> Difference | None:
    keys = [[each.key for each in graphs] for graphs in members.captured.values()]
    # Graphs may be captured in any order, and collectives may be spread over them in any way.
    if len({frozenset(Counter(each).items()) for each in keys}) == 1:
        return _of_replays(members)
    each_call = (chain.from_iterable(zip(*key, strict=False) for key in each) for each in keys)
    if len(set(map(tuple, each_call))) == 1:
        return None
    return _of_captures(members)


class _Sides(NamedTuple):
    """The ranks that differ, and those that they differ from: one of each, and their names."""

    odd: int
    most: int
    subject: str
    others: str
    """``the others``, or the ranks."""
    groups: list[list[int]]
    """All ranks, by what they did."""
    ranks: tuple[int, ...]
    """``Difference.ranks``"""


def _sides(values: Mapping[int, Hashable]) -> _Sides:
    by_value: dict[Hashable, list[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    groups = sorted(by_value.values(), key=len, reverse=True)
    most, odd = groups[:2]
    is_majority = len(most) > len(odd)
    others = "the others" if is_majority and len(groups) == 2 else ranks_text(most)
    ranks = odd if is_majority else sorted(most + odd)
    return _Sides(odd[0], most[0], ranks_text(odd), others, groups, tuple(ranks))


def _of_captures(members: Members) -> Difference | None:
    """The first graph whose collectives differ."""
    ranks, captured = members.ranks, members.captured
    for at in range(max(map(len, captured.values()))):
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
    sides = _sides(values)
    mine, theirs = captured[sides.odd][at:], captured[sides.most][at:]
    subject, others = sides.subject, sides.others
    frames: tuple[Frame, ...] = ()
    if _lacks(mine, theirs):
        graph = theirs[0]
        sentence = f"{subject} did not capture the graph of {graph.line}, which {others} did"
        if reason := _reason(ranks[sides.odd], graph):
            sentence += f": {reason}"
    elif _lacks(theirs, mine):
        graph = mine[0]
        is_known = graph.key in [each.key for each in captured[sides.odd][:at]]
        again = " again" * is_known
        sentence = f"{subject} captured the graph of {graph.line}{again}, and {others} did not"
    else:
        text, call = _first_call(mine[0].calls, theirs[0].calls)
        graph, frames = (mine if call.rank.number == sides.odd else theirs)[0], call.frames
        nodes, of_others = (each[0].graph.nodes or 0 for each in (mine, theirs))
        count = f"another graph at {mine[0].line} than {others}"
        if nodes != of_others:
            count = f"{count_text(nodes, 'node')}, {others} {of_others:,}"
        sentence = f"{subject} captured {count}: {text}"
    return Difference(
        sides.ranks,
        sentence,
        tuple(
            f"{ranks_text(group)}: {_graph_text(captured[group[0]], at)}" for group in sides.groups
        ),
        group_text(members.communicator),
        frames or graph.rank.frames(graph.graph),
        (graph.rank.number, graph.graph.number),
    )


def _lacks(some: Sequence[Captured], others: Sequence[Captured]) -> bool:
    """Whether the first of ``others`` was not captured, and what follows was."""
    return not some or (
        len(some) < len(others) and any(some[0].key == each.key for each in others[1:])
    )


def _reason(rank: Rank, graph: Captured) -> str | None:
    """The error that ended a capture by the same calls, or the rank."""
    failed = (each for each in rank.graphs if each.failure)
    frames = graph.rank.frames(graph.graph)
    reason = next((each.failure for each in failed if rank.frames(each) == frames), None)
    return reason or (f"ended with {rank.process.error}" if rank.process.error else None)


def _graph_text(captured: Sequence[Captured], at: int) -> str:
    if at >= len(captured):
        return f"captured {count_text(at, 'graph')} with collectives of this group"
    graph = captured[at]
    nodes = count_text(graph.graph.nodes or 0, "node")
    return f"captured {nodes} at {graph.line}: {_calls_text(graph)}"


def _calls_text(graph: Captured) -> str:
    kinds = Counter(each.text for each in graph.calls)
    texts = [f"{count}x {text}" if count > 1 else text for text, count in kinds.most_common(4)]
    return ", ".join(texts) + f" and {len(kinds) - 4} more" * (len(kinds) > 4)


def _first_call(mine: Sequence[Call], theirs: Sequence[Call]) -> tuple[str, Call]:
    """What differs first between the collectives of two graphs, and one of them."""
    pairs = zip(mine, theirs, strict=False)
    if len(mine) == len(theirs):
        at = next(at for at, (a, b) in enumerate(pairs) if a.signature != b.signature)
        ours, others = (f"{each.text}{each.where}" for each in (mine[at], theirs[at]))
        return f"#{at + 1} is {ours} instead of {others}", mine[at]
    # With their lines, which tell equal ones apart.
    differ = (
        at for at, (a, b) in enumerate(pairs) if (a.signature, a.where) != (b.signature, b.where)
    )
    at = next(differ, min(len(mine), len(theirs)))
    call = max(mine, theirs, key=len)[at]
    is_missing = len(mine) < len(theirs)
    state = "is missing" if is_missing else "is only there"
    return f"{call.collective.kind} #{at + 1}{call.where} {state}", call


def _of_replays(members: Members) -> Difference | None:
    """The first replay that is of another graph, or that a rank did not begin and others did. What
    one rank runs in a graph, none may run eagerly: NCCL requires the same of all."""
    ranks, captured = members.ranks, members.captured
    if any(each.graph.uncounted for graphs in captured.values() for each in graphs):
        return None
    names: dict[object, int] = {}
    replayed = {rank: _replayed(ranks[rank], graphs, names) for rank, graphs in captured.items()}
    # The order of the first ones is no longer known.
    begun = {rank: members.begun(rank) for rank in ranks}
    unknown = {rank: begun[rank] - len(replayed[rank]) for rank in ranks}
    hangs = any(rank.process.stacks for rank in ranks.values())
    for at in range(max(unknown.values()), max(begun.values())):
        replays = {
            rank: replayed[rank][at - unknown[rank]] if at < begun[rank] else None
            for rank in ranks
            # One that was ended might have gone on.
            if at < begun[rank] or hangs or ranks[rank].is_complete
        }
        values = {rank: each and each[0] for rank, each in replays.items()}
        if len(set(values.values())) > 1:
            break
    else:
        return None
    sides = _sides(values)
    texts = {
        rank: f"replayed the graph of {each[1].line}: {_calls_text(each[1])}"
        if each
        else _end_text(ranks[rank], begun[rank])
        for rank, each in replays.items()
    }
    number = f"replay {at + 1:,} of the group"
    graph = next(each[1] for rank in (sides.odd, sides.most) if (each := replays[rank]))
    mine, theirs = (texts[rank].partition(": ")[0] for rank in (sides.odd, sides.most))
    sentence = f"{sides.subject} {mine}, {sides.others} {theirs} ({number})"
    if hangs and None in replays.values():
        ahead = [rank for rank, each in replays.items() if each]
        behind = [rank for rank, each in replays.items() if not each]
        sentence = (
            f"{ranks_text(ahead)} wait{'s' * (len(ahead) == 1)} in {number}, of the graph of "
            f"{graph.line}, for {ranks_text(behind)}, which {texts[behind[0]]}"
        )
    return Difference(
        sides.ranks,
        sentence,
        tuple(f"{ranks_text(group)}: {texts[group[0]]}" for group in sides.groups),
        group_text(members.communicator),
        _replay_frames(graph),
        (graph.rank.number, graph.graph.number),
    )


def _end_text(rank: Rank, begun: int) -> str:
    if rank.process.error:
        return f"ended with {rank.process.error}"
    return f"{'ended after' if rank.is_complete else 'began'} {count_text(begun, 'replay')}"


def _replayed(
    rank: Rank, captured: Sequence[Captured], names: dict[object, int]
) -> list[tuple[int, Captured]]:
    """The last replays of these graphs, the oldest first. ``names``: numbers of what is equal of a
    graph on all ranks."""
    counts = Counter[object]()
    graphs: dict[int, tuple[int, Captured]] = {}
    for each in captured:
        # Where each rank sends as much as it wants, it may choose among graphs of several sizes.
        is_sized = any(each.key[1])
        name = each.key, counts[each.key] if is_sized else 0
        counts[each.key] += 1
        graphs[each.graph.number] = names.setdefault(name, len(names)), each
    return [graphs[number] for number in rank.process.last_replays if number in graphs]


def _replay_frames(graph: Captured) -> tuple[Frame, ...]:
    """The calls that lead to most of its replays."""
    places = graph.graph.replayed_at
    frames = max(places, key=lambda each: each.seen).frames if places else graph.graph.frames
    return tuple(graph.rank.capture.frames[frame] for frame in frames)


_Issued = tuple[Communicator, int]
"""A collective that a rank captures, the n-th of its communicator."""


def _crossed(ranks: Sequence[Rank]) -> Iterator[Difference]:
    """Collectives of two communicators that two ranks run in different orders, each of them one
    after the other on one stream of one graph: each rank waits for the other."""
    orders: dict[tuple[_Issued, ...], dict[_Issued, Call]] = {}
    for rank in ranks:
        issued = _issued(rank)
        orders.setdefault(tuple(issued), issued)
    for first, second in combinations(orders.values(), 2):
        places = {each: at for at, each in enumerate(first)}
        for after, before in pairwise(each for each in second if each in places):
            if (
                places[before] < places[after]
                and first[before].graph is first[after].graph
                and second[before].graph is second[after].graph
            ):
                call, other = first[before], second[after]
                here, there = (
                    f"{each.collective.kind} #{number}{each.where} of group "
                    f"{group_text(communicator)}"
                    for each, (communicator, number) in ((call, before), (other, after))
                )
                numbers = call.rank.number, other.rank.number
                yield Difference(
                    numbers,
                    f"rank {numbers[0]} runs {here} first, rank {numbers[1]} {there}: each waits "
                    "for the other",
                    (f"rank {numbers[0]}: {here}", f"rank {numbers[1]}: {there}"),
                    f"{group_text(before[0])}, {group_text(after[0])}",
                    call.frames or call.rank.frames(call.graph),
                    (numbers[0], call.graph.number),
                )
                return


def _issued(rank: Rank) -> dict[_Issued, Call]:
    """Those of graphs that have several communicators."""
    counts = Counter[Communicator]()
    issued: dict[_Issued, Call] = {}
    known = rank.capture.ledger.collectives if rank.capture.ledger else ()
    if all(len({each.communicator for each in graph.each}) < 2 for graph in known):
        return issued
    for call in chain.from_iterable(calls_of(rank, graph) for graph in rank.graphs):
        each = call.collective
        counts[each.communicator] += 1
        # A root does not wait.
        if each.waits and each.root is None:
            issued[each.communicator, counts[each.communicator]] = call
    return issued
