"""The trace: valid JSON, slices that lie inside each other, arrows that lead somewhere."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cgtool.model.capture import Edge, Source, SourceBlock
from cgtool.render.perfetto import render
from tests.builders import capture, hostile, small, timed, unusual
from tests.strategies import captures


def trace(recorded):
    return json.loads(render(recorded))["traceEvents"]


def ns(event, name="ts"):
    """A time as Perfetto reads it: the nearest nanosecond."""
    return round(event[name] * 1000)


def slices(events):
    """Complete events by thread, in the order of the file."""
    by_thread = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            by_thread[event["pid"], event["tid"]].append(event)
    return by_thread


def assert_nested(events):
    """Each slice lies inside the one before it that is still open, or begins after it."""
    for thread in slices(events).values():
        open_ends = []
        last = 0
        for event in thread:
            start, end = ns(event), ns(event) + ns(event, "dur")
            assert start >= last and end >= start
            last = start
            while open_ends and open_ends[-1] <= start and not (open_ends[-1] == start == end):
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


STARTS, DURATIONS = st.integers(0, 50), st.none() | st.integers(0, 20)


@st.composite
def jittered(draw):
    """Captures with any starts and durations at all, as medians may have them."""
    recorded = draw(captures())
    graphs = []
    for graph in recorded.graphs:
        nodes = tuple(
            structs.replace(
                node,
                start_ns=draw(STARTS),
                duration_ns=draw(DURATIONS),
            )
            for node in graph.nodes
        )
        graphs.append(structs.replace(graph, nodes=nodes))
    return structs.replace(recorded, graphs=tuple(graphs))


@given(jittered())
def test_slices_are_nested_and_every_timed_node_is_there(recorded):
    events = trace(recorded)
    assert_nested(events)
    shown = [
        (event["pid"], event["args"]["node"])
        for event in events
        if event["ph"] == "X" and "node" in event.get("args", ())
    ]
    assert sorted(shown) == [
        (index + 1, node.id)
        for index, graph in enumerate(recorded.graphs)
        for node in graph.nodes
        if node.duration_ns is not None
    ]


@given(jittered())
def test_arrows_leave_and_enter_slices(recorded):
    events = trace(recorded)
    by_thread = slices(events)
    arrows = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]][event["ph"]] = event
            inside = by_thread[event["pid"], event["tid"]]
            assert any(ns(outer) <= ns(event) <= ns(outer) + ns(outer, "dur") for outer in inside)
    for both in arrows.values():
        assert ns(both["s"]) <= ns(both["f"])
        assert both["s"]["tid"] != both["f"]["tid"]
        assert both["f"]["bp"] == "e"


def names(events, kind):
    return [event["name"] for event in events if event.get("cat") == kind]


def test_modules_lines_ops_and_kernels_are_nested():
    events = trace(timed(small()))
    assert_nested(events)
    threads = slices(events)
    forward = threads[1, 1]
    assert names(forward, "module")[:4] == [
        "layers",
        "layers.0",
        "layers.0.linear",
        "layers.0.norm",
    ]
    assert names(forward, "op")[:2] == ["aten::addmm", "aten::native_layer_norm"]
    assert names(forward, "line")[:2] == ["model.py:12 Block.forward", "model.py:13 Block.forward"]
    # One slice for all that runs in a row inside of it.
    assert names(forward, "module").count("layers") == 1
    assert [event["cat"] for event in forward[:6]] == ["module"] * 3 + ["line", "op", "kernel"]
    kernel = next(event for event in threads[2, 2] if event["cat"] == "kernel")
    assert kernel["args"]["grid"] == [4, 2, 1]
    assert kernel["args"]["registers"] == 35
    gradient = next(event for event in threads[2, 2] if event["name"].startswith("cutlass_80"))
    assert gradient["args"]["forward line"] == "model.py:12 Block.forward"
    assert gradient["args"]["autograd node"] == "AddmmBackward0"


def test_one_graph_after_the_other():
    threads = slices(trace(timed(small())))
    first = max(ns(event) + ns(event, "dur") for event in threads[1, 1])
    second = min(ns(event) for (pid, _), thread in threads.items() for event in thread if pid == 2)
    assert first < second


def test_processes_are_graphs_and_threads_are_streams():
    by_name = {
        (event["name"], event["pid"], event["tid"]): event["args"]
        for event in trace(timed(small()))
        if event["ph"] == "M"
    }
    assert by_name["process_name", 1, 1] == {"name": "forward"}
    assert by_name["process_name", 2, 2] == {"name": "backward"}
    assert by_name["thread_name", 2, 2] == {"name": "capture stream"}
    assert by_name["thread_name", 2, 4] == {"name": "side stream"}


@given(jittered())
def test_processes_and_threads_are_as_perfetto_expects_them(recorded):
    """Every process and thread has a name; the first stream is the main thread, which has the
    number of its process, and no number is that of two threads."""
    events = trace(recorded)
    named = [event for event in events if event["name"] in ("process_name", "thread_name")]
    assert all(event["args"]["name"] for event in named)
    threads = [(event["tid"], event["pid"]) for event in named if event["name"] == "thread_name"]
    assert len(dict(threads)) == len(threads)
    firsts = {pid: tid for tid, pid in reversed(threads)}
    assert all(pid == tid for pid, tid in firsts.items())
    assert {pid for pid, _ in slices(events)} == set(firsts)


def test_nodes_concurrent_with_their_own_stream_have_their_own_thread():
    recorded = timed(small())
    backward = recorded.graphs[1]
    # The last node no longer waits for the one before it on its stream: both begin at once.
    nodes = (
        *backward.nodes[:4],
        structs.replace(backward.nodes[4], start_ns=backward.nodes[2].start_ns),
    )
    edges = (Edge(0, 1), Edge(1, 2), Edge(1, 3), Edge(1, 4))
    recorded = structs.replace(
        recorded, graphs=(recorded.graphs[0], structs.replace(backward, nodes=nodes, edges=edges))
    )
    events = trace(recorded)
    assert_nested(events)
    thread_names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert "capture stream, concurrent (1)" in thread_names


def test_a_node_that_seems_to_begin_before_its_predecessor_has_ended_cuts_it_short():
    recorded = timed(small())
    forward = recorded.graphs[0]
    early = structs.replace(forward.nodes[1], start_ns=forward.nodes[0].duration_ns - 7)
    nodes = (forward.nodes[0], early, *forward.nodes[2:])
    recorded = structs.replace(recorded, graphs=(structs.replace(forward, nodes=nodes),))
    first = next(event for event in slices(trace(recorded))[1, 1] if event["cat"] == "kernel")
    assert ns(first, "dur") == forward.nodes[0].duration_ns - 7
    assert first["args"]["ns"] == forward.nodes[0].duration_ns


def test_the_saved_source_of_a_line():
    recorded = timed(small())
    frame = recorded.frames[0]
    saved = Source(frame.file, (SourceBlock(frame.line, ("        x = self.linear(x)",)),))
    recorded = structs.replace(recorded, sources=(saved,))
    lines = {e["name"]: e["args"] for e in slices(trace(recorded))[1, 1] if e["cat"] == "line"}
    assert lines["model.py:12 Block.forward"]["source"] == "x = self.linear(x)"
    assert "source" not in lines["model.py:13 Block.forward"]


@pytest.mark.parametrize("recorded", [hostile(), unusual(), capture([])])
def test_names_of_any_kind_and_graphs_of_any_nodes(recorded):
    recorded = timed(recorded)
    text = render(recorded)
    assert json.loads(text)["displayTimeUnit"] == "ns"
    assert text.decode().rstrip("\n").isprintable()
    assert_nested(json.loads(text)["traceEvents"])
