"""Of equal nodes in a row some are matched: which ones?

A longest common subsequence does not tell, and takes the first. A run of unmatched nodes may change
places with equal ones right before or behind it, which changes no count. Best is where the other
side has unmatched nodes too, of which they may be another form (another kernel, another size), and
then where the lines of the matched ones fit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from cgtool.analysis.diff.facts import Facts
from cgtool.analysis.diff.matching import Pair

_Fits = Callable[[int, int], bool]


def slide(
    pairs: Sequence[Pair],
    mine: Sequence[int],
    yours: Sequence[int],
    left: Facts,
    right: Facts,
) -> list[Pair]:
    """Pairs of equal keys (``mine`` and ``yours``), chosen anew. Linear in the nodes."""
    shifts = _shifts(left, right, pairs)

    def fits(a: int, b: int) -> bool:
        before, after = left.lines[a], right.lines[b]
        if before is None or after is None:
            return False
        return after.line - before.line == shifts[left.of[a].function]

    forth = _slid(dict(pairs), mine, len(yours), fits)
    back = {b: a for a, b in forth.items()}
    back = _slid(back, yours, len(mine), lambda b, a: fits(a, b))
    return sorted((a, b) for b, a in back.items())


def _shifts(left: Facts, right: Facts, pairs: Sequence[Pair]) -> dict[str | None, int]:
    """By how many lines each function has moved in its file, as most of its nodes have it."""
    counts: dict[str | None, Counter[int]] = defaultdict(Counter)
    for a, b in pairs:
        before, after = left.lines[a], right.lines[b]
        if before is not None and after is not None:
            counts[left.of[a].function][after.line - before.line] += 1
    return defaultdict(
        int,
        {
            function: min(shifts, key=lambda shift: (-shifts[shift], abs(shift), shift))
            for function, shifts in counts.items()
        },
    )


def _slid(match: dict[int, int], keys: Sequence[int], others: int, fits: _Fits) -> dict[int, int]:
    """Move each run of unmatched nodes of one side to where it is best."""
    made = dict(match)
    start, count = 0, len(keys)
    while start < count:
        if start in made:
            start += 1
            continue
        end = start + 1
        while end < count and end not in made:
            end += 1
        for taken, given in _exchanges(made, keys, others, fits, start, end):
            made[given] = made.pop(taken)
        start = end
    return made


def _exchanges(
    made: dict[int, int], keys: Sequence[int], others: int, fits: _Fits, start: int, end: int
) -> list[Pair]:
    """Whose partner goes to whom, so that the run from ``start`` to ``end`` lies best."""
    stays_above = start == 0 or keys[start - 1] != keys[end - 1]
    if stays_above and (end == len(keys) or keys[end] != keys[start]):
        return []

    def opposite(above: int, below: int) -> int:
        """Unmatched nodes of the other side that the run would have to itself between two nodes; a
        run that already lies there comes first."""
        first, last = above, below
        while first >= 0 and first not in made:
            first -= 1
        while last < len(keys) and last not in made:
            last += 1
        gap = made.get(last, others) - made.get(first, -1) - 1
        return min(max(gap - (above - first) - (last - below), 0), end - start)

    here = opposite(start - 1, end)
    best, chosen = (0, 0), list[Pair]()
    for step in (-1, 1):
        # One place at a time: the run takes a neighbour in, and gives its partner to its last one.
        taken, given = (start - 1, end - 1) if step < 0 else (end, start)
        fitting, tried, enough = 0, list[Pair](), 0
        while taken in made and keys[taken] == keys[given]:
            fitting += fits(given, made[taken]) - fits(taken, made[taken])
            tried.append((taken, given))
            there = opposite(taken - 1, taken) if step < 0 else opposite(taken, taken + 1)
            if (there - here, fitting) > best:
                best, enough = (there - here, fitting), len(tried)
            taken, given = taken + step, given + step
        if enough:
            chosen = tried[:enough]
    return chosen
