"""Which ranks wait for which others, where nothing moves any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cgtool.analysis.ranks.rank import Members, Rank, members_of, ranks_text
from cgtool.analysis.units import count_text


@dataclass(frozen=True)
class Wait:
    """Ranks that have begun a replay, and those that have not."""

    ranks: tuple[int, ...]
    behind: tuple[int, ...]
    """They wait for these."""
    sentence: str
    group: str
    """The process group, by PyTorch's name and its ranks."""


_SHOWN = 8


def waits_of(ranks: Sequence[Rank]) -> tuple[Wait, ...]:
    """By communicator; none, if the program was not seen to hang."""
    if not any(rank.process.stacks for rank in ranks):
        return ()
    return tuple(wait for members in members_of(ranks) for wait in _waits(members))


def _waits(members: Members) -> Iterator[Wait]:
    begun = {
        rank: sum(members.ranks[rank].begun(each.graph) for each in graphs)
        for rank, graphs in members.captured.items()
    }
    most = max(begun.values())
    ahead = [rank for rank, count in begun.items() if count == most]
    behind = [rank for rank, count in begun.items() if count < most]
    if not behind:
        return
    first = members.ranks[ahead[0]]
    captured = members.captured[first.number]
    line = first.line(first.last_of(captured))
    where = f"in replay {most:,} of the graph of {line}"
    if len(captured) > 1:
        where = f"in a replay of the graph of {line}, number {most:,} of the group,"
    did = [_did(members.ranks[rank], begun[rank]) for rank in behind[:_SHOWN]]
    if len(behind) > _SHOWN:
        did.append(f"{len(behind) - _SHOWN:,} more")
    yield Wait(
        tuple(ahead),
        tuple(behind),
        f"{ranks_text(ahead)} wait{'s' * (len(ahead) == 1)} {where} for {', '.join(did)}",
        members.text,
    )


def _did(rank: Rank, begun: int) -> str:
    text = f"rank {rank.number}, which "
    # What has ended a rank that has written its stacks came later.
    if rank.process.error and not rank.process.stacks:
        return f"{text}ended with {rank.process.error}"
    if rank.process.ended_ns is not None and not rank.process.stacks:
        return f"{text}has ended after {count_text(begun, 'replay')}"
    return f"{text}has begun {begun:,}" if begun else f"{text}has begun none"
