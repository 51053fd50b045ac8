"""The allocator's model: hand-checked sequences, and what must hold for every sequence."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cgtool.devices.simulated.memory import (
    LARGE_SEGMENT,
    SMALL_SEGMENT,
    PrivatePool,
    round_size,
    segment_size,
)

MIB = 1 << 20


def test_rounding_and_segments():
    assert [round_size(n) for n in (0, 1, 512, 513)] == [512, 512, 512, 1024]
    assert segment_size(512) == SMALL_SEGMENT
    assert segment_size(MIB) == SMALL_SEGMENT
    assert segment_size(MIB + 512) == LARGE_SEGMENT
    assert segment_size(10 * MIB) == 10 * MIB
    assert segment_size(11 * MIB) == 12 * MIB


def test_small_blocks_share_a_segment_and_are_used_again():
    pool = PrivatePool(0)
    first, second = pool.allocate(1000), pool.allocate(1000)
    assert second.address == first.address + 1024
    pool.free(first)
    assert pool.allocate(600).address == first.address
    assert len(pool.segments) == 1


def test_the_best_fit_is_the_smallest():
    pool = PrivatePool(0)
    blocks = [pool.allocate(size) for size in (4096, 512, 1024, 512, 2048, 512)]
    for block in (blocks[0], blocks[2], blocks[4]):
        pool.free(block)
    assert pool.allocate(1024).address == blocks[2].address


def test_a_large_block_keeps_a_small_rest():
    pool = PrivatePool(0)
    block = pool.allocate(19 * MIB + 512 * 1024)
    assert block.bytes == 20 * MIB


def test_neighbors_merge():
    pool = PrivatePool(0)
    blocks = [pool.allocate(512) for _ in range(3)]
    for block in (blocks[0], blocks[2], blocks[1]):
        pool.free(block)
    assert [block.bytes for block in pool.blocks(pool.segments[0])] == [SMALL_SEGMENT]


requests = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(0, 30 * MIB)),
        st.tuples(st.just("free"), st.integers(0, 50)),
    ),
    max_size=60,
)


@given(requests)
def test_live_blocks_never_overlap_and_segments_are_covered(steps):
    pool = PrivatePool(0)
    live = []
    for request, value in steps:
        if request == "alloc":
            block = pool.allocate(value)
            assert block.bytes >= value
            live.append(block)
        elif live:
            pool.free(live.pop(value % len(live)))
        spans = sorted((block.address, block.address + block.bytes) for block in live)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    used = 0
    for segment in pool.segments:
        blocks = pool.blocks(segment)
        for left, right in itertools.pairwise(blocks):
            assert left.address + left.bytes == right.address
            assert left.used or right.used, "two free neighbors were not merged"
        used += sum(block.bytes for block in blocks if block.used)
    assert used == sum(block.bytes for block in live)
