"""Busy time, gaps, and what is left of a replay that no profiler watched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cgtool.analysis.timing.gaps import own_time, timeline_of
from cgtool.model.capture import Graph, Node
from cgtool.model.measurements import GraphTimes, Profile
from tests.builders import capture, small, timed

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=12)


def laid_out(times, replay_ns=None):
    """One graph whose nodes start and last as given."""
    nodes = tuple(
        Node(number, "kernel", start_ns=start, duration_ns=duration)
        for number, (start, duration) in enumerate(times)
    )
    profile = Profile("cupti", (GraphTimes(0, (replay_ns,)),)) if replay_ns is not None else None
    return capture([Graph("forward", "forward", nodes=nodes)], profile=profile)


@given(spans)
def test_busy_and_gaps_are_what_a_clock_that_ticks_would_count(times):
    line = timeline_of(laid_out(times), 0, shown=100)
    first = min(start for start, _ in times)
    last = max(start + duration for start, duration in times)
    running = [
        sum(start <= tick < start + duration for start, duration in times)
        for tick in range(first, last)
    ]
    assert line.span_ns == last - first
    assert line.busy_ns == sum(count > 0 for count in running)
    assert line.work_ns == sum(running)
    assert line.at_once == max(running, default=0)
    assert line.busy_ns + sum(gap.traced_ns for gap in line.gaps) == line.span_ns
    assert len(line.gaps) == line.gap_count
    assert all(gap.traced_ns > 0 for gap in line.gaps)


@given(spans, st.floats(1, 200))
def test_nodes_and_gaps_make_up_the_replay_without_a_profiler(times, replay_ns):
    line = timeline_of(laid_out(times, replay_ns), 0, shown=100)
    assert line.replay_ns == replay_ns
    assert line.gaps_ns == pytest.approx(sum(gap.ns for gap in line.gaps))
    assert line.gaps_ns >= 0 and line.around_ns >= 0
    whole = line.busy_ns + line.gaps_ns + line.around_ns
    assert whole == pytest.approx(max(replay_ns, line.busy_ns))
    assert all(gap.ns <= gap.traced_ns for gap in line.gaps)


@given(spans)
def test_each_gap_is_between_its_two_nodes(times):
    line = timeline_of(laid_out(times), 0, shown=100)
    for gap in line.gaps:
        before, after = times[gap.after], times[gap.before]
        assert after[0] - (before[0] + before[1]) == gap.traced_ns
    lengths = [gap.traced_ns for gap in line.gaps]
    assert lengths == sorted(lengths, reverse=True)


def test_traced_gaps_are_scaled_and_both_figures_kept():
    # Traced: 100 busy, 60 idle. Without a profiler 130: 30 are left for the gaps.
    line = timeline_of(laid_out([(0, 40), (60, 20), (120, 40)], 130.0), 0)
    assert (line.busy_ns, line.span_ns, line.scale) == (100, 160, 0.5)
    assert [(gap.after, gap.before, gap.traced_ns, gap.ns) for gap in line.gaps] == [
        (1, 2, 40, 20.0),
        (0, 1, 20, 10.0),
    ]
    assert line.idle_ns == 30


def test_time_beyond_the_gaps_is_before_the_first_node_or_after_the_last():
    line = timeline_of(laid_out([(0, 40), (50, 40)], 130.0), 0)
    assert (line.gaps_ns, line.around_ns, line.scale) == (10, 40, 1)


def test_time_around_the_nodes_is_not_a_gap():
    # Traced: 80 busy, 20 idle. Without a profiler 120: 40 are left, 30 of them around the nodes.
    recorded = laid_out([(0, 40), (60, 40)], 120.0)
    known = structs.replace(recorded, profile=structs.replace(recorded.profile, around_ns=30.0))
    line = timeline_of(known, 0)
    assert (line.gaps_ns, line.around_ns, line.scale) == (10, 30, 0.5)
    # A replay shorter than that has no gaps, and its nodes are not made shorter.
    hurried = structs.replace(recorded.profile, graphs=(GraphTimes(0, (100.0,)),), around_ns=30.0)
    line = timeline_of(structs.replace(recorded, profile=hurried), 0)
    assert (line.busy_ns, line.gaps_ns, line.around_ns) == (80, 0, 20)


def test_the_time_of_the_events_themselves_is_not_part_of_the_replay():
    assert own_time(GraphTimes(0, (10.0, 12.0, 30.0), (2.0, 2.5))) == 12.0 - 2.25
    assert own_time(GraphTimes(0)) is None
    assert own_time(None) is None


def test_a_replay_takes_as_long_as_in_a_loop_unless_the_loop_waits_for_the_host():
    alone = GraphTimes(0, (101.0, 101.0), (1.0,))
    assert own_time(structs.replace(alone, queued_ns=101.5)) == 101.5
    assert own_time(structs.replace(alone, queued_ns=99.0)) == 99.0
    assert own_time(structs.replace(alone, queued_ns=120.0)) == 100.0


def test_nodes_without_a_start_have_a_sum_and_no_gaps():
    nodes = (Node(0, "kernel", duration_ns=5), Node(1, "memcpy", duration_ns=7), Node(2, "host"))
    line = timeline_of(capture([Graph("forward", "forward", nodes=nodes)]), 0)
    assert (line.span_ns, line.busy_ns, line.total_ns, line.gaps) == (None, 12, 12, ())
    assert (line.nodes, line.timed) == (2, 2)


def test_nothing_was_timed():
    line = timeline_of(small(), 0)
    assert (line.timed, line.total_ns, line.gap_count) == (0, 0, 0)


def test_branches_that_run_side_by_side():
    recorded = timed(small())
    backward = recorded.graphs[1].nodes
    line = timeline_of(recorded, 1)
    assert line.at_once == 2
    assert line.work_ns - line.busy_ns == min(backward[2].duration_ns, backward[3].duration_ns)
    assert timeline_of(structs.replace(recorded, graphs=recorded.graphs[:1]), 0).at_once == 1
