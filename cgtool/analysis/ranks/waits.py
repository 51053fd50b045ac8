"""Which ranks wait for which others, where nothing moves any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cgtool.analysis.ranks.rank import Members, Rank, group_text, members_of, ranks_text
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


def waits_of(ranks: Sequence[Rank]) -> tuple[Wait, ...]:
    """By communicator; none, if the program was not seen to hang."""
    if not any(rank.process.stacks for rank in ranks):
        return ()
    return tuple(wait for members in members_of(ranks) for wait in _waits(members))


def _waits(members: Members) -> Iterator[Wait]:
    begun = {rank: members.begun(rank) for rank in members.ranks}
    most = max(begun.values())
    ahead = [rank for rank, count in begun.items() if count == most]
    behind: defaultdict[str, list[int]] = defaultdict(list)
    for rank, count in begun.items():
        if count < most:
            behind[_state(members.ranks[rank], count)].append(rank)
    if not behind:
        return
    captured = {each.graph.number: each.line for each in members.captured[ahead[0]]}
    last = reversed(members.ranks[ahead[0]].process.last_replays)
    line = next((captured[each] for each in last if each in captured), "")
    did = ", ".join(f"{ranks_text(some)}, which {state}" for state, some in behind.items())
    yield Wait(
        tuple(ahead),
        tuple(rank for some in behind.values() for rank in some),
        f"{ranks_text(ahead)} wait{'s' * (len(ahead) == 1)} in a replay of the graph of {line}, "
        f"number {most:,} of the group, for {did}",
        group_text(members.communicator),
    )


def _state(rank: Rank, begun: int) -> str:
    # What has ended a rank that has written its stacks came later.
    if not rank.process.stacks and (rank.process.error or rank.is_complete):
        return f"ended with {rank.process.error}" if rank.process.error else "has ended"
    return f"began {count_text(begun, 'replay')}" if begun else "began none"
