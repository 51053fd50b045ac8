"""Time by line, module, op, kernel and node."""

from __future__ import annotations

import pytest
from hypothesis import given
from msgspec import structs

from cgtool.analysis.graph.places import WORK
from cgtool.analysis.timing.roofline import utilizations
from cgtool.analysis.timing.time_tables import BY, TimeTables
from cgtool.model.capture import Frame
from tests.builders import capture, hostile, small, timed
from tests.strategies import captures


def tables(recorded, total_ns=None):
    work = sum(node.duration_ns or 0 for graph in recorded.graphs for node in graph.nodes)
    return TimeTables(
        recorded, [utilizations(recorded, graph) for graph in recorded.graphs], total_ns or work
    )


def shown(table):
    return {row.name: (row.nodes, row.total_ns) for row in table.rows}


@given(captures())
def test_no_nanosecond_is_lost_in_any_table(recorded):
    recorded = timed(recorded)
    work = [node for graph in recorded.graphs for node in graph.nodes if node.type in WORK]
    for by in BY:
        table = tables(recorded).table(by)
        assert sum(row.total_ns for row in table.rows) == sum(
            node.duration_ns or 0 for node in work
        )
        assert sum(row.nodes for row in table.rows) == len(work)
        totals = [row.total_ns for row in table.rows]
        assert totals == sorted(totals, reverse=True)
        assert all(0 <= row.backward_ns <= row.total_ns for row in table.rows)
        short = tables(recorded).table(by, top=2)
        if by != "module":
            assert short.rows == table.rows[:2]
            assert short.left_out == len(table.rows) - len(short.rows)
        assert sum(totals) == sum(row.total_ns for row in short.rows) + short.left_out_ns


def test_work_in_backward_belongs_to_the_forward_line():
    table = tables(timed(small())).table("line")
    # Two blocks: addmm forward at line 12 and its gradient in backward; the norm at line 13.
    rows = {row.name: row for row in table.rows}
    assert set(rows) == {"model.py:12", "model.py:13", "train.py:7", "(no line)"}
    assert rows["model.py:12"].nodes == 4
    assert rows["model.py:12"].function == "Block.forward"
    assert 0 < rows["model.py:12"].backward_ns < rows["model.py:12"].total_ns
    assert rows["model.py:13"].backward_ns == 0
    assert table.has_backward


def test_a_step_has_its_backward_inside_one_graph():
    recorded = timed(small())
    step = structs.replace(recorded.graphs[1], phase="step", name="step")
    table = tables(structs.replace(recorded, graphs=(step,))).table("op")
    rows = {row.name: row for row in table.rows}
    assert rows["mm"].backward_ns == rows["mm"].total_ns > 0


def test_by_op_and_kernel_and_node():
    profile_tables = tables(timed(small()))
    assert shown(profile_tables.table("op"))["addmm"] == (2, 1000 + 1900)
    assert shown(profile_tables.table("kernel"))["memcpy dtod"] == (1, 2800)
    assert shown(profile_tables.table("kernel"))["memset"] == (1, 1000)
    nodes = profile_tables.table("node", top=3)
    assert [row.name for row in nodes.rows] == ["forward 6", "forward 5", "forward 4"]
    assert (nodes.rows[1].kernel, nodes.left_out) == ("triton_poi_fused_add_gelu_0", 9)


@pytest.mark.parametrize(
    ("depth", "names"),
    [
        (1, {"layers", "(root)", "(no module)"}),
        (2, {"layers.0", "layers.1", "(root)", "(no module)"}),
        (
            None,
            {"layers.0", "layers.0.linear", "layers.0.norm", "layers.1", "layers.1.linear",
             "layers.1.norm", "(root)", "(no module)"},
        ),
    ],
)  # fmt: skip
def test_modules_to_a_depth(depth, names):
    table = tables(timed(small())).table("module", depth=depth)
    assert {row.name for row in table.rows} == names
    assert table.depth == (depth or 3)
    types = {row.name: row.module for row in table.rows}
    if depth is None:
        assert types["layers.0.linear"] == "Linear"
        assert types["layers.0"] == "Block"
        assert types["(root)"] == "Model"


def test_outside_every_module_the_range_is_the_name():
    recorded = timed(small())
    origins = tuple(
        structs.replace(origin, annotations=("Optimizer.step#AdamW.step",))
        if origin.module is None
        else origin
        for origin in recorded.origins
    )
    table = tables(structs.replace(recorded, origins=origins)).table("module", depth=1)
    names = {row.name for row in table.rows}
    assert names == {"layers", "(root)", "(Optimizer.step#AdamW.step)"}


def test_modules_are_as_deep_as_the_rows_allow():
    table = tables(timed(small())).table("module", top=4)
    assert table.depth == 2
    assert len(table.rows) == 4


def test_the_modules_of_several_callables_are_distinguished():
    recorded = timed(small())
    entry = structs.replace(recorded.entry, callables=("G", "D"))
    forward, backward = recorded.graphs
    recorded = structs.replace(
        recorded, entry=entry, graphs=(forward, structs.replace(backward, callable=1))
    )
    names = {row.name for row in tables(recorded).table("module", depth=1).rows}
    assert names == {"G: layers", "G: (root)", "D: layers", "D: (no module)"}


def test_files_of_the_same_name_are_distinguished():
    recorded = timed(small())
    frames = (Frame("/home/me/other/model.py", 12, "f"), *recorded.frames[1:])
    names = {
        row.name for row in tables(structs.replace(recorded, frames=frames)).table("line").rows
    }
    assert "/home/me/other/model.py:12" in names
    assert "/home/me/model.py:13" in names


def test_shares_are_of_the_whole_replay():
    profile_tables = tables(timed(small()), total_ns=50_000.0)
    assert sum(row.share for row in profile_tables.table("op").rows) == pytest.approx(
        sum(row.total_ns for row in profile_tables.table("op").rows) / 50_000
    )


def test_hostile_names_and_an_empty_capture():
    recorded = timed(hostile())
    for by in BY:
        assert sum(row.nodes for row in tables(recorded).table(by).rows) == sum(
            node.duration_ns is not None for graph in recorded.graphs for node in graph.nodes
        )
        assert tables(capture([])).table(by).rows == ()


def test_how_full_the_device_is_while_an_op_runs():
    recorded = timed(small())
    # 16 blocks of 132 multiprocessors that hold eight each; kernels of backward do not say.
    rows = {row.name: row for row in tables(recorded).table("op").rows}
    assert rows["addmm"].filled == pytest.approx(16 / (132 * 8))
    assert rows["mm"].filled is None
