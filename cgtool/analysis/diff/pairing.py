"""Matches the nodes of one graph with those of another.

A node is known by what it does (type, kernel, sizes, stream, arguments) and where it comes from
(module, op, function), and by its place in the order of creation: never by its id, an address or a
handle. Line numbers and folders do not count, because a comment above changes the numbers, and
another checkout the folders.

1. Nodes that are equal in all of that are matched in order (``common``). Where equal nodes are
   next to each other and one of them is gone, their lines tell which.
2. Equal nodes that are left on both sides have moved.
3. What is left between two matched nodes is matched by less and less: the same module, op and
   kernel (another launch size, stream or function), the same module and op (another kernel), the
   same work from another module, the same work by another op.
4. The rest was removed or added.

The result of (A, B) is that of (B, A) mirrored.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from msgspec import Struct

from cgtool.analysis.graph.kernel_names import same_in_every_build
from cgtool.analysis.graph.places import Places
from cgtool.model.capture import (
    ArgumentList,
    Call,
    Capture,
    Copy,
    Fill,
    Frame,
    Graph,
    KernelLaunch,
    Node,
)
from cgtool.model.schema import Field, fields

_TABLE_BITS = 400_000_000
"""The exact method needs one bit per pair of elements: 50 MB."""
_QUICK_BITS = 100_000_000
"""A table of this size takes less than 50 ms, whatever its contents."""
_ENOUGH = 100
"""One cut in so many elements is trusted. A single key may have moved, and a cut there would part
all that belongs together."""
Pair = tuple[int, int]
"""Positions or node ids: (left, right)."""


class Fact(NamedTuple):
    """The identity of a node in every capture of the same code: no id, address, handle or folder,
    which differ between processes, and no line, which a comment above shifts.
    """

    module: str | None
    op: str | None
    function: str | None
    """The Python function that the work belongs to; in backward, of the forward op."""
    autograd_node: str | None
    type: str
    name: str | None
    """The mangled name of a kernel, the kind of a memcpy."""
    sizes: tuple[object, ...]
    """Values of ``size_fields``."""
    stream: int | None
    """Index into ``Capture.streams``."""
    arguments: int | None
    """Number of the op's arguments in ``ArgumentNumbers``; None if they are not compared."""


ArgumentNumbers = dict[ArgumentList, int]
"""A number for each argument list of two captures."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The nodes of one graph: a fact and a line for each."""

    of: Sequence[Fact]
    lines: Sequence[Frame | None]


def _compared(struct: type[Struct]) -> list[Field]:
    return [field for field in fields(struct) if field.compared]


_PARTS = {
    "kernel": ("kernel", _compared(KernelLaunch)),
    "memcpy": ("copy", _compared(Copy)),
    "memset": ("fill", _compared(Fill)),
}
"""By type of the node: its launch, copy or fill, and what is compared of that."""
_OWN = _compared(Node)
_PART_NAMES = {
    type_: (attribute, [field.name for field in part_fields])
    for type_, (attribute, part_fields) in _PARTS.items()
}
_OWN_NAMES = [field.name for field in _OWN]


def size_fields(type_: str) -> list[Field]:
    """The fields of ``Fact.sizes`` for nodes of this type."""
    return [*(_PARTS[type_][1] if type_ in _PARTS else ()), *_OWN]


class Reader:
    """Builds the facts of a capture; each origin and each function is read once."""

    def __init__(self, capture: Capture, numbers: ArgumentNumbers | None) -> None:
        """``numbers``: of both captures, if their arguments are to be compared; it grows."""
        self.places = Places(capture)
        self._arguments: Sequence[int] | None = None
        if numbers is not None:
            lists = capture.argument_lists
            self._arguments = [numbers.setdefault(each, len(numbers)) for each in lists]
        self._kernels = [same_in_every_build(function.name) for function in capture.functions]
        self._from: dict[int | None, tuple[str | None, str | None, str | None, str | None]] = {}
        self._lines: dict[int | None, Frame | None] = {}
        for origin in (None, *range(len(capture.origins))):
            place = self.places.of_origin(origin)
            self._lines[origin] = place.line
            function = place.line.function if place.line else None
            self._from[origin] = place.module, place.op, function, place.autograd_node

    def facts(self, graph: Graph) -> Facts:
        return Facts(
            [self._fact(node, graph.calls) for node in graph.nodes],
            [self._lines[node.origin] for node in graph.nodes],
        )

    def _fact(self, node: Node, calls: Sequence[Call]) -> Fact:
        name: str | None = None
        if node.kernel is not None:
            name = self._kernels[node.kernel.function]
        elif node.copy is not None:
            name = node.copy.kind
        attribute, part_names = _PART_NAMES.get(node.type, ("kernel", ()))
        part = getattr(node, attribute)
        sizes = [getattr(part, name, None) for name in part_names]
        sizes += [getattr(node, name) for name in _OWN_NAMES]
        arguments = None
        if self._arguments is not None and node.call is not None and calls:
            index = calls[node.call].arguments
            arguments = None if index is None else self._arguments[index]
        return Fact(*self._from[node.origin], node.type, name, tuple(sizes), node.stream, arguments)


@dataclass(slots=True)
class Pairing:
    """Node ids; pairs are (left, right)."""

    same: list[Pair] = field(default_factory=list)
    """Equal in everything but the line."""
    alike: list[Pair] = field(default_factory=list)
    """The same node, with something changed."""
    moved: list[Pair] = field(default_factory=list)
    """Equal, but in another order."""
    removed: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)

    @property
    def matched(self) -> list[Pair]:
        """All pairs."""
        return [*self.same, *self.alike, *self.moved]


_Gap = tuple[Sequence[int], Sequence[int]]
"""Unmatched nodes of both sides between two matched pairs."""


def _part(*names: str) -> Callable[[Fact], Hashable]:
    return itemgetter(*(Fact._fields.index(name) for name in names))


_LESS_AND_LESS: tuple[tuple[Callable[[Fact], Hashable], str | None], ...] = (
    (_part("module", "op", "type", "name"), None),
    (_part("module", "op", "type"), None),
    (_part("op", "type", "name", "sizes"), None),
    # An output shape alone is not enough to match two different ops.
    (_part("module", "function", "name", "sizes"), "kernel"),
)
"""Properties that must be equal, the most first, and the type of node to which they apply."""


def pair(left: Facts, right: Facts) -> Pairing:
    """Match the nodes of two graphs."""
    if not _swapped(left.of, right.of):
        return _pair(left, right)
    pairing = _pair(right, left)
    same, alike, moved = (
        sorted((a, b) for b, a in pairs) for pairs in (pairing.same, pairing.alike, pairing.moved)
    )
    return Pairing(same, alike, moved, pairing.added, pairing.removed)


def _swapped(left: Sequence[Fact], right: Sequence[Fact]) -> bool:
    """Whether the graphs are compared in the other order, so that the result is symmetric."""
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
    pairing = Pairing(_slide(common(mine, yours), mine, yours, left, right))
    rest = _unmatched(range(len(mine)), pairing.same, 0)
    others = _unmatched(range(len(yours)), pairing.same, 1)
    # Equal nodes that are left have moved: the first of one side is the first of the other.
    waiting: dict[int, deque[int]] = defaultdict(deque)
    for node in others:
        waiting[yours[node]].append(node)
    pairing.moved = [(node, waiting[mine[node]].popleft()) for node in rest if waiting[mine[node]]]
    gaps = _gaps(
        pairing.same, _unmatched(rest, pairing.moved, 0), _unmatched(others, pairing.moved, 1)
    )
    for key, only in _LESS_AND_LESS:
        gaps = _refined(gaps, left.of, right.of, key, only, pairing.alike)
    pairing.alike.sort()
    pairing.removed = [node for mine_, _ in gaps for node in mine_]
    pairing.added = [node for _, yours_ in gaps for node in yours_]
    return pairing


def _unmatched(nodes: Iterable[int], pairs: Iterable[Pair], side: int) -> list[int]:
    matched = {pair[side] for pair in pairs}
    return [node for node in nodes if node not in matched]


def _numbered(values: Iterable[Hashable], numbers: dict[Hashable, int]) -> list[int]:
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _gaps(pairs: Sequence[Pair], mine: Iterable[int], yours: Iterable[int]) -> list[_Gap]:
    """The nodes between matched pairs, which ascend on both sides."""
    rest, others = _unmatched(mine, pairs, 0), _unmatched(yours, pairs, 1)
    gaps: list[_Gap] = []
    a = b = 0
    for left, right in (*pairs, (sys.maxsize, sys.maxsize)):
        end_a, end_b = bisect_left(rest, left, a), bisect_left(others, right, b)
        if end_a > a or end_b > b:
            gaps.append((rest[a:end_a], others[b:end_b]))
        a, b = end_a, end_b
    return gaps


def _refined(
    gaps: Sequence[_Gap],
    left: Sequence[Fact],
    right: Sequence[Fact],
    key: Callable[[Fact], Hashable],
    only: str | None,
    matched: list[Pair],
) -> list[_Gap]:
    """Match inside each gap by a key, and return the smaller gaps that remain."""
    smaller: list[_Gap] = []
    for gap in gaps:
        mine = [node for node in gap[0] if only is None or left[node].type == only]
        yours = [node for node in gap[1] if only is None or right[node].type == only]
        numbers: dict[Hashable, int] = {}
        ours = _numbered((key(left[node]) for node in mine), numbers)
        theirs = _numbered((key(right[node]) for node in yours), numbers)
        pairs = [(mine[a], yours[b]) for a, b in common(ours, theirs)]
        matched += pairs
        smaller += _gaps(pairs, *gap)
    return smaller


_Fits = Callable[[int, int], bool]


def _slide(
    pairs: Sequence[Pair], mine: Sequence[int], yours: Sequence[int], left: Facts, right: Facts
) -> list[Pair]:
    """Pairs of equal keys (``mine`` and ``yours``), chosen again. Linear in the nodes."""
    counts: dict[str | None, Counter[int]] = defaultdict(Counter)
    for a, b in pairs:
        before, after = left.lines[a], right.lines[b]
        if before is not None and after is not None:
            counts[left.of[a].function][after.line - before.line] += 1
    # By how many lines each function has moved in its file, as most of its nodes have it.
    shifts = {
        function: min(moves, key=lambda move: (-moves[move], abs(move), move))
        for function, moves in counts.items()
    }

    def fits(a: int, b: int) -> bool:
        before, after = left.lines[a], right.lines[b]
        if before is None or after is None:
            return False
        return after.line - before.line == shifts.get(left.of[a].function, 0)

    forth = _slid(dict(pairs), mine, len(yours), fits)
    back = _slid({b: a for a, b in forth.items()}, yours, len(mine), lambda b, a: fits(a, b))
    return sorted((a, b) for b, a in back.items())


def _slid(partner: dict[int, int], keys: Sequence[int], others: int, fits: _Fits) -> dict[int, int]:
    """Move each run of unmatched nodes of one side to where it is best; ``partner`` changes."""
    start, count = 0, len(keys)
    while start < count:
        if start in partner:
            start += 1
            continue
        end = start + 1
        while end < count and end not in partner:
            end += 1
        for taken, given in _exchanges(partner, keys, others, fits, start, end):
            partner[given] = partner.pop(taken)
        start = end
    return partner


def _exchanges(
    partner: dict[int, int], keys: Sequence[int], others: int, fits: _Fits, start: int, end: int
) -> list[Pair]:
    """How partners shift so that the run from ``start`` to ``end`` is at the best place."""
    stays_above = start == 0 or keys[start - 1] != keys[end - 1]
    if stays_above and (end == len(keys) or keys[end] != keys[start]):
        return []

    def opposite(above: int, below: int) -> int:
        """Unmatched nodes of the other side that the run would have to itself between two nodes; a
        run that already lies there comes first."""
        first, last = above, below
        while first >= 0 and first not in partner:
            first -= 1
        while last < len(keys) and last not in partner:
            last += 1
        gap = partner.get(last, others) - partner.get(first, -1) - 1
        return min(max(gap - (above - first) - (last - below), 0), end - start)

    here = opposite(start - 1, end)
    best, chosen = (0, 0), list[Pair]()
    for step in (-1, 1):
        # One place at a time: the run takes a neighbor in, and gives its partner to its last one.
        taken, given = (start - 1, end - 1) if step < 0 else (end, start)
        fitting, tried, enough = 0, list[Pair](), 0
        while taken in partner and keys[taken] == keys[given]:
            fitting += fits(given, partner[taken]) - fits(taken, partner[taken])
            tried.append((taken, given))
            there = opposite(taken - 1, taken) if step < 0 else opposite(taken, taken + 1)
            if (there - here, fitting) > best:
                best, enough = (there - here, fitting), len(tried)
            taken, given = taken + step, given + step
        if enough:
            chosen = tried[:enough]
    return chosen


def common(left: Sequence[int], right: Sequence[int]) -> list[Pair]:
    """Positions of equal keys, rising on both sides.

    A longest common subsequence wherever that is affordable: equal ends are cut off, what one side
    alone has is left out, and the rest goes to rapidfuzz, which works on 64 elements at once.
    Beyond that the sequences are cut at keys that both have once, as patience diff does; what has
    too few such keys falls to an edit distance, which needs no table. Where one side is the other
    with elements taken out, every element of it is matched.
    """
    low = 0
    most = min(len(left), len(right))
    while low < most and left[low] == right[low]:
        low += 1
    high = 0
    while high < most - low and left[-1 - high] == right[-1 - high]:
        high += 1
    pairs = [(at, at) for at in range(low)]
    pairs += _middle(left, right, range(low, len(left) - high), range(low, len(right) - high))
    pairs += [(len(left) - at, len(right) - at) for at in range(high, 0, -1)]
    return pairs


def _middle(left: Sequence[int], right: Sequence[int], ours: range, theirs: range) -> list[Pair]:
    if not ours or not theirs:
        return []
    counts = Counter(left[ours.start : ours.stop])
    others = Counter(right[theirs.start : theirs.stop])
    mine = [at for at in ours if left[at] in others]
    yours = [at for at in theirs if right[at] in counts]
    if not mine:
        return []
    first, second = [left[at] for at in mine], [right[at] for at in yours]
    once = {key for key, count in counts.items() if count == 1 == others.get(key)}
    cuts = _cuts(first, second, once)
    pairs: list[Pair] = []
    for (a, b), (c, d) in pairwise([(-1, -1), *cuts, (len(first), len(second))]):
        if a >= 0:
            pairs.append((mine[a], yours[b]))
        if c - a > 1 and d - b > 1:
            aligned = _aligned(first[a + 1 : c], second[b + 1 : d])
            pairs += [(mine[a + 1 + i], yours[b + 1 + j]) for i, j in aligned]
    return pairs


def _cuts(first: list[int], second: list[int], once: set[int]) -> list[Pair]:
    """Pairs of equal keys to cut at; none if the whole can be compared at once."""
    fewer = min(len(first), len(second))
    # A table of keys that hardly repeat is slow to fill, and cutting at them loses next to nothing.
    mostly_once = 2 * len(once) >= fewer
    if len(first) * len(second) <= (_QUICK_BITS if mostly_once else _TABLE_BITS):
        return []
    place = {key: at for at, key in enumerate(second) if key in once}
    cuts = _rising([(at, place[key]) for at, key in enumerate(first) if key in once])
    return cuts if mostly_once or len(cuts) * _ENOUGH >= fewer else []


def _rising(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest subsequence of pairs, sorted by their first, whose seconds also increase."""
    tails: list[int] = []
    at: list[int] = []
    before = [-1] * len(pairs)
    for number, (_, second) in enumerate(pairs):
        place = bisect_left(tails, second)
        if place:
            before[number] = at[place - 1]
        if place == len(tails):
            tails.append(second)
            at.append(number)
        else:
            tails[place], at[place] = second, number
    chosen: list[Pair] = []
    number = at[-1] if at else -1
    while number >= 0:
        chosen.append(pairs[number])
        number = before[number]
    return chosen[::-1]


def _aligned(first: list[int], second: list[int]) -> Iterator[Pair]:
    # Two equal captures never get here, and do not pay for the import.
    from rapidfuzz.distance import LCSseq, Levenshtein

    if len(first) * len(second) <= _TABLE_BITS:
        for block in LCSseq.opcodes(first, second).as_matching_blocks():
            for step in range(block.size):
                yield block.a + step, block.b + step
        return
    i = j = 0
    for block in Levenshtein.opcodes(first, second).as_matching_blocks():
        # An edit distance replaces ten elements rather than find five of them further on.
        if 0 < (block.a - i) * (block.b - j) <= _TABLE_BITS:
            for a, b in _aligned(first[i : block.a], second[j : block.b]):
                yield i + a, j + b
        for step in range(block.size):
            yield block.a + step, block.b + step
        i, j = block.a + block.size, block.b + block.size
