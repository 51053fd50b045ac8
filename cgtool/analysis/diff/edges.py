"""Which nodes of two graphs wait for others than before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from msgspec.structs import astuple

from cgtool.analysis.diff.matching import Pair
from cgtool.model.capture import Edge

Link = tuple[int, int, int, int, int]
"""An ``Edge``; in a result, in ids of the left graph."""
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Rewired:
    """Dependencies between nodes that both graphs have, in ids of the left one."""

    gone: list[Link] = field(default_factory=list)
    come: list[Link] = field(default_factory=list)
    moved: list[Pair] = field(default_factory=list)
    """Of the nodes that moved, those that wait for others or that others wait for: without any,
    only the order of creation is another, and the two graphs are one."""


def rewired(
    left: Collection[Edge],
    right: Collection[Edge],
    kept: Iterable[Pair],
    moved: Iterable[Pair],
) -> Rewired:
    """Compare edges. ``kept`` and ``moved`` are the pairs that were matched.

    A node that went away leaves its neighbours to each other, and one that came stands between
    two: such an edge is no change of its own.
    """
    kept, moved = list(kept), list(moved)
    if not moved and left == right and all(a == b for a, b in kept):
        return Rewired()
    ours, theirs = [list(map(astuple, edges)) for edges in (left, right)]
    back = dict(kept)
    name = {b: a for a, b in kept}
    known, every = back, name
    if moved:
        known, every = {**back, **dict(moved)}, {**name, **{b: a for a, b in moved}}
    # In order, as dictionaries keep it: what lies side by side in memory is read side by side.
    before = dict.fromkeys([link for link in ours if link[0] in known and link[1] in known])
    after = dict.fromkeys(
        [
            (every[link[0]], every[link[1]], *link[2:])
            for link in theirs
            if link[0] in every and link[1] in every
        ]
    )
    lost = [link for link in before if link not in after]
    found = [link for link in after if link not in before]
    gone = [link for link in lost if link[0] in back and link[1] in back]
    come = [link for link in found if link[0] in back and link[1] in back]
    if gone:
        bridges = _Bridges(theirs, name)
        gone = [link for link in gone if not bridges.join(back[link[0]], back[link[1]])]
    if come:
        bridges = _Bridges(ours, back)
        come = [link for link in come if not bridges.join(link[0], link[1])]
    touched: set[int] = set()
    if moved:
        for end in (itemgetter(0), itemgetter(1)):
            touched.update(map(end, lost), map(end, found))
    return Rewired(sorted(gone), sorted(come), [one for one in moved if one[0] in touched])


class _Bridges:
    """What the nodes that only one graph has, or has elsewhere, connect.

    Those that hang together are one bridge; direction inside it is left out of account.
    """

    def __init__(self, links: Iterable[Link], kept: Container[int]) -> None:
        self._over: dict[int, int] = {}
        ends: list[Pair] = []
        for source, target, *_ in [
            link for link in links if link[0] not in kept or link[1] not in kept
        ]:
            if source in kept or target in kept:
                ends.append((source, target))
            else:
                self._over[self._find(source)] = self._find(target)
        self._entering: dict[int, set[int]] = defaultdict(set)
        self._leaving: dict[int, set[int]] = defaultdict(set)
        for source, target in ends:
            if source in kept:
                self._entering[source].add(self._find(target))
            else:
                self._leaving[target].add(self._find(source))

    def _find(self, node: int) -> int:
        root = node
        while self._over.setdefault(root, root) != root:
            root = self._over[root]
        while node != root:
            self._over[node], node = root, self._over[node]
        return root

    def join(self, source: int, target: int) -> bool:
        """Whether a path may lead from one node to the other over such nodes."""
        entered = self._entering.get(source, _NONE)
        return not entered.isdisjoint(self._leaving.get(target, _NONE))
