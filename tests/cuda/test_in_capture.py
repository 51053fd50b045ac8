"""Times and makers of nodes, from ops that counted the graph's nodes around them."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.bindings.driver")

from cgtool.devices.cuda.provenance import makers, times_ns
from cgtool.devices.cuda.stamps import OpTiming
from cgtool.observe.ops import OpCall


def call(index, launches, start_ns, end_ns):
    return OpCall(
        index, f"aten::{index}", (), None, None, (), 0, launches=launches,
        extra=OpTiming(start_ns, end_ns, 7),
    )  # fmt: skip


def test_each_node_is_there_when_its_op_ends_and_before_the_next_begins():
    calls = [call(0, (0, 2), 10, 20), call(1, (2, 2), 30, 35), call(2, (2, 3), 40, 50)]
    made_by = makers(calls, 3)
    assert [maker.index for maker in made_by] == [0, 0, 2]
    assert times_ns(calls, made_by, 99) == [20, 20, 50]


def test_a_node_between_two_ops_has_no_maker_and_was_there_when_the_next_began():
    calls = [call(0, (0, 1), 10, 20), call(1, (2, 3), 40, 50)]
    made_by = makers(calls, 4)
    assert [maker and maker.index for maker in made_by] == [0, None, 1, None]
    assert times_ns(calls, made_by, 99) == [20, 40, 50, 99]


def test_of_nested_ops_the_innermost_made_the_node_and_times_never_fall():
    outer, inner = call(0, (0, 3), 10, 60), call(1, (1, 2), 20, 30)
    made_by = makers([outer, inner], 3)
    assert [maker.index for maker in made_by] == [0, 1, 0]
    times = times_ns([outer, inner], made_by, 99)
    assert times == [20, 30, 60]


def test_an_empty_graph():
    assert makers([], 0) == []
    assert times_ns([], [], 99) == []
