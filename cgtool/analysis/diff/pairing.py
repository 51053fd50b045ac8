"""Which node of one graph is which node of another.

A node is known by what it does (type, kernel, sizes, stream) and where it comes from (module, op,
function), and by its place in the order of creation: never by its id, an address or a handle. Line
numbers and folders do not count, because a comment above shifts the one and a checkout the other.

1. Nodes that are equal in all of that are matched in order (``matching``). Where equal nodes stand
   next to each other and one of them is gone, their lines tell which.
2. Equal nodes that are left on both sides have moved.
3. What is left between two matched nodes is matched by less and less: the same module, op and
   kernel (another launch size, stream or function), the same module and op (another kernel), the
   same work from another module, the same work by another op.
4. The rest was removed or added.

The result of (A, B) is that of (B, A) mirrored.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from msgspec import Struct

from cgtool.analysis.diff.matching import Pair, common
from cgtool.analysis.graph.places import Places
from cgtool.model.capture import Capture, Copy, Fill, Frame, Graph, KernelLaunch, Node
from cgtool.model.schema import Field, fields

_UNNAMED = re.compile(r"(\d+)(?=_GLOBAL__N_)")
"""The length of a name, and the name."""


class Fact(NamedTuple):
    """What identifies a node in every capture of the same code: no id, address, handle or folder,
    which differ between processes, and no line, which a comment above shifts.
    """

    module: str | None
    op: str | None
    function: str | None
    """The Python function that the work belongs to; in backward, of the forward op."""
    autograd_node: str | None
    type: str
    name: str | None
    """Of a kernel its mangled name, of a copy its kind."""
    sizes: tuple[object, ...]
    """Values of ``size_fields``."""
    stream: int | None
    """Index into ``Capture.streams``."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one graph: a fact and a line for each node."""

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


def size_fields(type_: str) -> list[Field]:
    """What ``Fact.sizes`` holds for nodes of this type."""
    return [*(_PARTS[type_][1] if type_ in _PARTS else ()), *_OWN]


class Reader:
    """Makes the facts of a capture; each origin and each function is read once."""

    def __init__(self, capture: Capture) -> None:
        self.places = Places(capture)
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
            [self._fact(node) for node in graph.nodes],
            [self._lines[node.origin] for node in graph.nodes],
        )

    def _fact(self, node: Node) -> Fact:
        name: str | None = None
        if node.kernel is not None:
            name = self._kernels[node.kernel.function]
        elif node.copy is not None:
            name = node.copy.kind
        attribute, part_fields = _PARTS.get(node.type, ("kernel", ()))
        part = getattr(node, attribute)
        sizes = [getattr(part, field.name, None) for field in part_fields]
        sizes += [getattr(node, field.name) for field in _OWN]
        return Fact(*self._from[node.origin], node.type, name, tuple(sizes), node.stream)


def same_in_every_build(kernel: str) -> str:
    """The mangled name without what nvcc made up for an unnamed namespace: a hash of the source
    file, which another build of PyTorch has otherwise."""
    kept, at = [], 0
    for match in _UNNAMED.finditer(kernel):
        if match.start() >= at:
            kept += [kernel[at : match.start()], "12_GLOBAL__N_1"]
            # As the length says; no name is longer than a mangled name may be.
            at = match.end() + int(match[1][-5:])
    return "".join([*kept, kernel[at:]])


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
"""What has to be equal, and the type of node that this applies to."""


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


def _gaps(pairs: Sequence[Pair], rest: Sequence[int], others: Sequence[int]) -> list[_Gap]:
    """The nodes between matched pairs, which ascend on both sides."""
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
    matched: list[Pair],
) -> list[_Gap]:
    """Match inside each gap by a key, and return the smaller gaps that are left."""
    smaller: list[_Gap] = []
    for gap in gaps:
        mine = [node for node in gap[0] if only is None or left[node].type == only]
        yours = [node for node in gap[1] if only is None or right[node].type == only]
        numbers: dict[Hashable, int] = {}
        ours = _numbered((key(left[node]) for node in mine), numbers)
        theirs = _numbered((key(right[node]) for node in yours), numbers)
        pairs = [(mine[a], yours[b]) for a, b in common(ours, theirs)]
        matched += pairs
        smaller += _gaps(pairs, _unmatched(gap[0], pairs, 0), _unmatched(gap[1], pairs, 1))
    return smaller


_Fits = Callable[[int, int], bool]


def _slide(
    pairs: Sequence[Pair], mine: Sequence[int], yours: Sequence[int], left: Facts, right: Facts
) -> list[Pair]:
    """Pairs of equal keys (``mine`` and ``yours``), chosen anew. Linear in the nodes."""
    counts: dict[str | None, Counter[int]] = defaultdict(Counter)
    for a, b in pairs:
        before, after = left.lines[a], right.lines[b]
        if before is not None and after is not None:
            counts[left.of[a].function][after.line - before.line] += 1
    # By how many lines each function has moved in its file, as most of its nodes have it.
    shifts = {
        function: min(shifts, key=lambda shift: (-shifts[shift], abs(shift), shift))
        for function, shifts in counts.items()
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
    """Whose partner goes to whom, so that the run from ``start`` to ``end`` lies best."""
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
        # One place at a time: the run takes a neighbour in, and gives its partner to its last one.
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
