"""Which nodes of two graphs wait for others than before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, field

from msgspec.structs import astuple

from cgtool.analysis.diff.matching import Pair
from cgtool.model.capture import Edge

Link = tuple[int, int, int, int, int]
"""An ``Edge`` in ids of the left graph."""


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
    still = {a for a, _ in kept}
    name = {b: a for a, b in kept}
    every = {**name, **{b: a for a, b in moved}}
    known = still | {a for a, _ in moved}
    before = {link for link in map(astuple, left) if link[0] in known and link[1] in known}
    after = {
        (every[link[0]], every[link[1]], *link[2:])
        for link in map(astuple, right)
        if link[0] in every and link[1] in every
    }
    lost, found = before - after, after - before
    gone = [link for link in lost if link[0] in still and link[1] in still]
    come = [link for link in found if link[0] in still and link[1] in still]
    if gone:
        back = dict(kept)
        bridges = _Bridges(right, name)
        gone = [link for link in gone if not bridges.join(back[link[0]], back[link[1]])]
    if come:
        bridges = _Bridges(left, still)
        come = [link for link in come if not bridges.join(link[0], link[1])]
    touched = {link[0] for link in lost | found} | {link[1] for link in lost | found}
    return Rewired(sorted(gone), sorted(come), [one for one in moved if one[0] in touched])


class _Bridges:
    """What the nodes that only one graph has, or has elsewhere, connect.

    Those that hang together are one bridge; direction inside it is left out of account.
    """

    def __init__(self, edges: Iterable[Edge], kept: Container[int]) -> None:
        self._over: dict[int, int] = {}
        ends: list[Pair] = []
        for edge in edges:
            source, target = edge.source, edge.target
            if source not in kept and target not in kept:
                self._over[self._find(source)] = self._find(target)
            elif source not in kept or target not in kept:
                ends.append((source, target))
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
        return not self._entering[source].isdisjoint(self._leaving[target])
