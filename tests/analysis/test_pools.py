"""Pool tables: sums to the byte, on recorded captures and on any lifetimes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgtool.analysis.graph.summary import summarize
from cgtool.analysis.pools import live_bytes, pools_report, reserved_bytes
from cgtool.model.capture import (
    Allocation,
    Block,
    Capture,
    Entry,
    Environment,
    Graph,
    Memory,
    Pool,
    Segment,
)
from cgtool.model.capture_file import read
from tests.builders import small, timed

CAPTURES = sorted((Path(__file__).parent.parent.parent / "samples" / "captures").glob("*.cgt"))


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
@pytest.mark.parametrize("by", ["graph", "stream", "module", "line"])
def test_sums_of_a_recorded_capture_agree_with_its_segments(path, by):
    capture = read(path)
    report = pools_report(capture, by=by, holders=10**6)
    for pool, row in zip(capture.memory.pools, report.pools, strict=True):
        assert row.reserved_bytes == reserved_bytes(pool)
        assert row.live_bytes == live_bytes(pool)
        assert row.live_bytes <= row.peak_bytes <= row.reserved_bytes
        assert row.floor_bytes <= row.peak_bytes
        assert 0 <= row.untouched_bytes <= row.reserved_bytes - row.live_bytes
        groups = [group for group in report.groups if group.pool == pool.name]
        assert sum(group.live_bytes for group in groups) == row.live_bytes
        assert sum(group.allocations for group in groups) == row.allocations
        held = [holder for holder in report.holders if holder.pool == pool.name]
        assert sum(holder.bytes for holder in held) == row.live_bytes


def test_workspaces_and_outputs_are_named():
    report = pools_report(read(next(path for path in CAPTURES if path.stem == "mlp")), holders=99)
    holders = {row.holder for row in report.holders}
    assert {"cuBLAS workspace", "output"} <= holders
    assert "gradient of layers.0.weight" in holders


def test_memory_that_forward_leaves_to_backward_is_shown():
    report = pools_report(read(next(path for path in CAPTURES if path.stem == "transformer")))
    assert [(row.first, row.second) for row in report.shared] == [("forward", "backward")]
    assert report.shared[0].bytes > 0


def capture_of(lives):
    """One pool of 512-byte slots; a life is (slot, start, length or None)."""
    events, allocations = [], []
    busy = {}
    for slot, start, length in sorted(lives, key=lambda life: life[1]):
        if busy.get(slot, -1) >= start:
            continue
        end = None if length is None else start + length
        busy[slot] = 10**9 if end is None else end
        events.append((start, end, slot))
    times = sorted({t for start, end, _ in events for t in (start, end) if t is not None})
    number = {t: index for index, t in enumerate(times)}
    for start, end, slot in events:
        allocations.append(
            Allocation(
                address=slot * 512,
                bytes=512,
                requested_bytes=100,
                pool=0,
                graph=0,
                allocated_at=number[start],
                freed_at=None if end is None else number[end],
            )
        )
    live = {allocation.address for allocation in allocations if allocation.freed_at is None}
    blocks = tuple(
        Block(slot * 512, 512, 100, "active_allocated" if slot * 512 in live else "inactive")
        for slot in range(8)
    )
    memory = Memory(
        (Pool((0, 1), "graphs", (Segment(0, 4096, None, "small", blocks),)),), tuple(allocations)
    )
    return Capture(
        Entry("x", "callable"), Environment("gpu"), "", "", graphs=(Graph("forward", "forward"),),
        memory=memory,
    )  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 50), st.one_of(st.none(), st.integers(1, 20))),
        max_size=40,
    )
)
def test_any_lifetimes_add_up(lives):
    capture = capture_of(lives)
    row = pools_report(capture).pools[0]
    touched = {allocation.address for allocation in capture.memory.allocations}
    assert row.untouched_bytes == 4096 - 512 * len(touched)
    assert row.live_bytes == 512 * sum(
        allocation.freed_at is None for allocation in capture.memory.allocations
    )
    most = max(
        (
            sum(
                allocation.allocated_at <= moment
                and (allocation.freed_at is None or allocation.freed_at > moment)
                for allocation in capture.memory.allocations
            )
            for moment in range(100)
        ),
        default=0,
    )
    assert (row.peak_bytes, row.floor_bytes) == (512 * most, 100 * most)


def test_only_the_pools_that_are_named():
    capture = read(
        Path(__file__).parent.parent / "gold" / "captures" / "mlp-separate-simulated.cgt"
    )
    both, backward = pools_report(capture), pools_report(capture, only=["backward"])
    assert [row.name for row in both.pools] == ["forward", "backward"]
    assert backward.pools == both.pools[1:]
    assert {row.pool for row in (*backward.groups, *backward.holders)} == {"backward"}
    assert (
        sum(row.bytes for row in backward.holders) + backward.bytes_left_out
        == backward.pools[0].live_bytes
    )
    assert backward.rounding_bytes <= both.rounding_bytes


def test_the_drivers_memory_is_that_of_the_graphs_shown():
    capture = read(next(path for path in CAPTURES if path.stem == "transformer"))
    own = sum(graph.exec_bytes or 0 for graph in capture.graphs)
    assert pools_report(capture, only=["graphs"]).driver_bytes == own


def test_modules_of_several_callables_are_distinguished():
    capture = read(next(path for path in CAPTURES if path.stem == "gan"))
    names = {row.group for row in pools_report(capture, by="module").groups}
    assert {"generator: 0", "discriminator: 0"} <= names
    modules = {row.module: row.type for row in summarize(capture).modules}
    assert modules["generator: 3"] == "Tanh"
    assert "discriminator: 3" not in modules


def test_bytes_of_holders_that_are_not_listed():
    capture = read(next(path for path in CAPTURES if path.stem == "transformer"))
    short = pools_report(capture, holders=3)
    listed = sum(row.bytes for row in short.holders)
    assert listed + short.bytes_left_out == short.pools[0].live_bytes


@pytest.mark.parametrize("by", ["graph", "module", "line"])
def test_times_of_the_nodes_are_shown_with_the_memory_that_they_hold(by):
    capture = timed(small())
    times = {row.group: row.time_ns for row in pools_report(capture, by=by).groups}
    work = [[node.duration_ns for node in graph.nodes] for graph in capture.graphs]
    # Two of forward stand in that line, and two of backward belong to it.
    assert (
        times
        == {
            "graph": {"forward": sum(work[0]), "backward": sum(work[1])},
            "module": {
                "layers.0": sum(work[0][:3]) + work[1][3],
                "layers.1": sum(work[0][3:6]) + work[1][1],
            },
            "line": {
                "model.py:12": work[0][0] + work[0][3] + work[1][1] + work[1][3],
            },
        }[by]
    )
    assert all(row.time_ns is None for row in pools_report(small(), by=by).groups)
