"""What two sequences have in common, in order.

Exact (a longest common subsequence) wherever that is affordable: equal ends are cut off, what one
side alone has is left out, and the rest goes to rapidfuzz, which works on 64 elements at once.
Beyond that the sequences are cut at keys that both have once, as patience diff does; what has too
few such keys falls to an edit distance, which needs no table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

_TABLE_BITS = 400_000_000
"""The exact way needs a bit for every pair of elements: 50 MB."""
_QUICK_BITS = 100_000_000
"""A table of this size takes under 50 ms, whatever is in it."""
_ENOUGH = 100
"""One cut in so many elements is trusted. A single key may have moved, and a cut there would part
all that belongs together."""

Pair = tuple[int, int]


def common(left: Sequence[int], right: Sequence[int]) -> list[Pair]:
    """Positions of equal keys, rising on both sides. Keys are not negative.

    Where one side is the other with elements taken out, every element of it is matched.
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
    found: list[Pair] = []
    for (a, b), (c, d) in pairwise([(-1, -1), *cuts, (len(first), len(second))]):
        if a >= 0:
            found.append((mine[a], yours[b]))
        if c - a > 1 and d - b > 1:
            pairs = _aligned(first[a + 1 : c], second[b + 1 : d])
            found += [(mine[a + 1 + i], yours[b + 1 + j]) for i, j in pairs]
    return found


def _cuts(first: list[int], second: list[int], once: set[int]) -> list[Pair]:
    """Pairs of equal keys to cut at; none where the whole can be compared at once."""
    fewer = min(len(first), len(second))
    # A table of keys that hardly repeat is slow to fill, and cutting at them loses next to nothing.
    mostly_once = 2 * len(once) >= fewer
    if len(first) * len(second) <= (_QUICK_BITS if mostly_once else _TABLE_BITS):
        return []
    place = {key: at for at, key in enumerate(second) if key in once}
    cuts = _rising([(at, place[key]) for at, key in enumerate(first) if key in once])
    return cuts if mostly_once or len(cuts) * _ENOUGH >= fewer else []


def _rising(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest part of pairs, whose firsts rise, in which the seconds rise too."""
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
    # Two captures that are equal never come here, and need not wait for the import.
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
