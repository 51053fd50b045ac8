"""What two sequences have in common: against a table, and beyond the sizes that one is made for."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgtool.analysis.diff import pairing
from cgtool.analysis.diff.pairing import common

keys = st.lists(st.integers(0, 5), max_size=14)


def longest(left, right):
    """Length of a longest common subsequence, by the book."""
    row = [0] * (len(right) + 1)
    for key in left:
        above = row
        row = [0]
        for at, other in enumerate(right):
            row.append(above[at] + 1 if key == other else max(above[at + 1], row[at]))
    return row[-1]


def check(left, right):
    pairs = common(left, right)
    assert all(left[a] == right[b] for a, b in pairs)
    for (a, b), (c, d) in pairwise(pairs):
        assert a < c
        assert b < d
    return pairs


@given(keys, keys)
def test_it_is_the_longest(left, right):
    assert len(check(left, right)) == longest(left, right)


@pytest.fixture
def small(monkeypatch):
    """What is done to large sequences is done to small ones."""
    monkeypatch.setattr(pairing, "_TABLE_BITS", 16)
    monkeypatch.setattr(pairing, "_QUICK_BITS", 4)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kinds", [1, 2, 5, 1000])
def test_large_ones_are_matched_soundly_and_completely_where_only_some_are_gone(kinds):
    draw = random.Random(kinds)
    for _ in range(50):
        left = [draw.randrange(kinds) for _ in range(60)]
        check(left, [draw.randrange(kinds) for _ in range(60)])
        kept = sorted(draw.sample(range(60), draw.randrange(61)))
        assert len(check(left, [left[at] for at in kept])) == len(kept)
        assert len(check([left[at] for at in kept], left)) == len(kept)


@pytest.mark.usefixtures("small")
def test_one_key_that_moved_does_not_part_the_rest():
    rest = [1, 2] * 100
    assert len(check([0, *rest], [*rest, 0])) == len(rest)


@pytest.mark.usefixtures("small")
def test_keys_that_occur_once_are_cut_at():
    left = list(range(100))
    right = [key for key in left if key % 7]
    assert len(check(left, right)) == len(right)
    block = [*left[50:], *left[:50]]
    assert len(check(left, block)) == 50


@pytest.mark.usefixtures("small")
def test_what_an_edit_distance_replaces_is_looked_at_again(monkeypatch):
    monkeypatch.setattr(pairing, "_TABLE_BITS", 100)
    left = [9, 9, 9, 1, 2, *[0, 3] * 20]
    right = [1, 2, 8, 8, 8, *[0, 3] * 20, 7]
    assert len(check(left, right)) == 42
