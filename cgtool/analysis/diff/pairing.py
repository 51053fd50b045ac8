"""Which node of one graph is which node of another.

A node is known by what it does (type, kernel, sizes, stream) and where it comes from (module, op,
function), and by its place in the order of creation: never by its id, an address or a handle. Line
numbers and folders do not count, because a comment above shifts the one and a checkout the other.

1. Nodes that are equal in all of that are matched in order (``matching``). Where equal nodes stand
   side by side and one of them is gone, their lines tell which.
2. Equal nodes that are left on both sides have moved.
3. What is left between two matched nodes is matched by less and less: the same module, op and
   kernel (another launch size, stream or function), the same module and op (another kernel), the
   same work from another module, the same work by another op.
4. The rest was removed or added.

The result of (A, B) is that of (B, A) mirrored.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from cgtool.analysis.diff.facts import Fact, Facts
from cgtool.analysis.diff.matching import Pair, common
from cgtool.analysis.diff.sliding import slide


@dataclass(slots=True)
class Pairing:
    """Node ids; pairs are (left, right)."""

    same: list[Pair] = field(default_factory=list)
    """Equal in everything but the line."""
    alike: list[Pair] = field(default_factory=list)
    """The same node, but something about it is not equal."""
    moved: list[Pair] = field(default_factory=list)
    """Equal, but not in the same order."""
    removed: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)


_Gap = tuple[Sequence[int], Sequence[int]]
"""Nodes of both sides that are left between two matched pairs."""


def _part(*names: str) -> Callable[[Fact], Hashable]:
    return itemgetter(*(Fact._fields.index(name) for name in names))


_LESS_AND_LESS: tuple[tuple[Callable[[Fact], Hashable], str | None], ...] = (
    (_part("module", "op", "type", "name"), None),
    (_part("module", "op", "type"), None),
    (_part("op", "type", "name", "sizes"), None),
    # The shape of an output says too little to take two different ops for one.
    (_part("module", "function", "name", "sizes"), "kernel"),
)
"""What has to be equal, and the type that this holds for."""


def pair(left: Facts, right: Facts) -> Pairing:
    """Match the nodes of two graphs."""
    if _swapped(left.of, right.of):
        return _mirrored(_pair(right, left))
    return _pair(left, right)


def _mirrored(found: Pairing) -> Pairing:
    def turned(pairs: list[Pair]) -> list[Pair]:
        return sorted((mine, yours) for yours, mine in pairs)

    same, alike, moved = turned(found.same), turned(found.alike), turned(found.moved)
    return Pairing(same, alike, moved, found.added, found.removed)


def _swapped(left: Sequence[Fact], right: Sequence[Fact]) -> bool:
    """Of the two ways round one is chosen, whichever graph is given first."""
    if len(left) != len(right):
        return len(left) < len(right)
    for mine, yours in zip(left, right, strict=True):
        if mine != yours:
            return repr(mine) < repr(yours)
    return False


def _pair(left: Facts, right: Facts) -> Pairing:
    numbers: dict[Hashable, int] = {}
    mine = _numbered(left.of, numbers)
    yours = _numbered(right.of, numbers)
    if mine == yours:
        return Pairing([(node, node) for node in range(len(mine))])
    found = Pairing(slide(common(mine, yours), mine, yours, left, right))
    ours, theirs = {a for a, _ in found.same}, {b for _, b in found.same}
    rest = [node for node in range(len(mine)) if node not in ours]
    others = [node for node in range(len(yours)) if node not in theirs]
    found.moved = _moved(rest, others, mine, yours)
    gone, come = {a for a, _ in found.moved}, {b for _, b in found.moved}
    gaps = _gaps(
        found.same,
        [node for node in rest if node not in gone],
        [node for node in others if node not in come],
    )
    for key, only in _LESS_AND_LESS:
        gaps = _refined(gaps, left.of, right.of, key, only, found.alike)
    found.alike.sort()
    found.removed = [node for mine_, _ in gaps for node in mine_]
    found.added = [node for _, yours_ in gaps for node in yours_]
    return found


def _numbered(values: Iterable[Hashable], numbers: dict[Hashable, int]) -> list[int]:
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _moved(
    rest: Sequence[int], others: Sequence[int], mine: Sequence[int], yours: Sequence[int]
) -> list[Pair]:
    waiting: dict[int, deque[int]] = defaultdict(deque)
    for node in others:
        waiting[yours[node]].append(node)
    return [(node, waiting[mine[node]].popleft()) for node in rest if waiting[mine[node]]]


def _gaps(pairs: Sequence[Pair], rest: Sequence[int], others: Sequence[int]) -> list[_Gap]:
    """What lies between matched pairs, which rise on both sides."""
    gaps: list[_Gap] = []
    a = b = 0
    for left, right in (*pairs, (None, None)):
        first, second = a, b
        while a < len(rest) and (left is None or rest[a] < left):
            a += 1
        while b < len(others) and (right is None or others[b] < right):
            b += 1
        if a > first or b > second:
            gaps.append((rest[first:a], others[second:b]))
    return gaps


def _refined(
    gaps: Sequence[_Gap],
    left: Sequence[Fact],
    right: Sequence[Fact],
    key: Callable[[Fact], Hashable],
    only: str | None,
    found: list[Pair],
) -> list[_Gap]:
    """Match inside each gap by a key, and return the smaller gaps that are left."""
    smaller: list[_Gap] = []
    for gap in gaps:
        mine, yours = gap
        if only is not None:
            mine = [node for node in mine if left[node].type == only]
            yours = [node for node in yours if right[node].type == only]
        if not mine or not yours:
            smaller.append(gap)
            continue
        numbers: dict[Hashable, int] = {}
        ours = _numbered((key(left[node]) for node in mine), numbers)
        theirs = _numbered((key(right[node]) for node in yours), numbers)
        pairs = [(mine[a], yours[b]) for a, b in common(ours, theirs)]
        if len(pairs) == len(gap[0]) == len(gap[1]):
            found += pairs
            continue
        if not pairs:
            smaller.append(gap)
            continue
        found += pairs
        gone, come = {a for a, _ in pairs}, {b for _, b in pairs}
        smaller += _gaps(
            pairs,
            [node for node in gap[0] if node not in gone],
            [node for node in gap[1] if node not in come],
        )
    return smaller
