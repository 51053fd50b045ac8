"""The critical path, compared with all paths of small graphs."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cgtool.analysis.graph.reach import Reach
from cgtool.analysis.graph.schedule import critical_path, longest, schedule, waits
from cgtool.model.capture import Capture, Edge, Graph, Node, topological
from tests import builders
from tests.strategies import edges


def of(durations, pairs, starts=None, types=None) -> Capture:
    """A graph of kernels with these times."""
    nodes = tuple(
        Node(
            number,
            types[number] if types else "kernel",
            duration_ns=duration,
            start_ns=starts[number] if starts else None,
        )
        for number, duration in enumerate(durations)
    )
    all_edges = tuple(pair if isinstance(pair, Edge) else Edge(*pair) for pair in pairs)
    return builders.capture([Graph("forward", "forward", nodes=nodes, edges=all_edges)])


def finishes(capture: Capture, durations=None) -> int:
    """The end of the last node, by the definition: a target starts when its sources have ended, or
    at a programmatic edge as long after the source's start as was measured."""
    nodes, graph_edges = capture.graphs[0].nodes, capture.graphs[0].edges
    times = durations or [node.duration_ns or 0 for node in nodes]
    start = [0] * len(nodes)
    for _ in nodes:
        for edge in graph_edges:
            source, target = nodes[edge.source], nodes[edge.target]
            delay = times[edge.source]
            if edge.type == 1:
                known = source.start_ns is not None and target.start_ns is not None
                lag = max(0, target.start_ns - source.start_ns) if known else 0
                if lag < (source.duration_ns or 0):
                    delay = lag
            start[edge.target] = max(start[edge.target], start[edge.source] + delay)
    return max((begin + time for begin, time in zip(start, times, strict=True)), default=0)


TIMES = st.none() | st.integers(0, 9)
STREAMS = st.sampled_from((None, 0, 0, 1))


@st.composite
def timed(draw) -> Capture:
    count = draw(st.integers(1, 7))
    durations = [draw(TIMES) for _ in range(count)]
    starts = draw(st.none() | st.lists(st.integers(0, 30), min_size=count, max_size=count))
    capture = of(durations, draw(edges(count)), starts)
    # Streams say nothing of the order: edges do.
    nodes = (
        msgspec.structs.replace(node, stream=draw(STREAMS)) for node in capture.graphs[0].nodes
    )
    graph = msgspec.structs.replace(capture.graphs[0], nodes=tuple(nodes))
    return msgspec.structs.replace(capture, graphs=(graph,))


@given(timed())
@settings(max_examples=300)
def test_the_path_is_as_long_as_the_schedule(capture):
    path = critical_path(capture, 0)
    nodes = capture.graphs[0].nodes
    assert path.length_ns == finishes(capture)
    assert path.busy_ns == sum(node.duration_ns or 0 for node in nodes)
    assert path.untimed == sum(node.duration_ns is None for node in nodes)
    follows = {(edge.source, edge.target) for edge in capture.graphs[0].edges}
    assert all(pair in follows for pair in zip(path.nodes, path.nodes[1:], strict=False))


@given(timed())
@settings(max_examples=300)
def test_a_node_may_take_its_slack_longer_and_no_more(capture):
    path = critical_path(capture, 0)
    if not path.timed:
        return
    durations = [node.duration_ns or 0 for node in capture.graphs[0].nodes]
    for node, slack in enumerate(path.slack_ns):
        longer = list(durations)
        longer[node] += slack
        assert finishes(capture, longer) == path.length_ns
        longer[node] += 1
        assert finishes(capture, longer) == path.length_ns + 1


@given(timed())
@settings(max_examples=300)
def test_the_width_is_that_of_an_antichain(capture):
    graph = capture.graphs[0]
    count = len(graph.nodes)
    after = [[False] * count for _ in range(count)]
    for edge in sorted(graph.edges, key=lambda edge: -edge.source):
        after[edge.source][edge.target] = True
        for node in range(count):
            after[edge.source][node] |= after[edge.target][node]
    widest = max(
        len(chosen)
        for number in range(1 << count)
        for chosen in [[node for node in range(count) if number >> node & 1]]
        if not any(after[node][other] for node in chosen for other in chosen)
    )
    assert 1 <= critical_path(capture, 0).width <= widest
    order = list(range(count))
    pairs = [(node, other) for node in order for other in order if node != other]
    expected = {(node, other) for node, other in pairs if after[node][other]}
    assert Reach(graph).connected(pairs) == expected


@given(timed())
def test_the_length_alone_is_that_of_the_schedule(capture):
    graph = capture.graphs[0]
    order = topological(len(graph.nodes), graph.edges)
    before, times = waits(graph), [node.duration_ns or 0 for node in graph.nodes]
    assert longest(order, times, before) == schedule(order, times, before).length


def test_two_branches():
    # 0 -> 1 -> 3, 0 -> 2 -> 3: the branch over 2 is the longer one.
    path = critical_path(of([5, 10, 30, 5], [(0, 1), (0, 2), (1, 3), (2, 3)]), 0)
    assert path.nodes == (0, 2, 3)
    assert path.length_ns == 40
    assert path.slack_ns == (0, 20, 0, 0)
    assert path.width == 2
    assert path.replay_ns is None


def test_the_path_and_the_replay_by_the_same_clock():
    # A gap of 5 between the two.
    path = critical_path(of([10, 15], [(0, 1)], starts=[0, 15]), 0)
    assert (path.length_ns, path.replay_ns) == (25, 30)


def test_programmatic_edges_are_not_added_in_full():
    early = Edge(0, 1, 1, 0, 1)
    # The second starts 6 after the first, which takes 10.
    path = critical_path(of([10, 10], [early], starts=[0, 6]), 0)
    assert (path.length_ns, path.overlapping) == (16, 1)
    assert path.slack_ns == (6, 0)
    # It started when the first had ended: nothing overlapped.
    path = critical_path(of([10, 10], [early], starts=[0, 11]), 0)
    assert (path.length_ns, path.overlapping) == (20, 0)
    # Starts that were not measured: as if they had started together.
    assert critical_path(of([10, 10], [early]), 0).length_ns == 10
    # An ordinary edge beside it wins.
    path = critical_path(of([10, 10], [early, (0, 1)], starts=[0, 6]), 0)
    assert (path.length_ns, path.overlapping) == (20, 0)


def test_without_times_the_path_has_the_most_nodes():
    capture = of([None] * 4, [(0, 1), (1, 2), (0, 3)], types=["kernel", "op", "memset", "kernel"])
    path = critical_path(capture, 0)
    assert path.nodes == (0, 1, 2)
    assert (path.length_ns, path.busy_ns, path.timed, path.untimed) == (0, 0, False, 4)


def test_without_times_nothing_overlaps():
    capture = of([None] * 3, [Edge(0, 1, 1, 0, 1), (1, 2)])
    path = critical_path(capture, 0)
    assert (path.nodes, path.overlapping) == ((0, 1, 2), 0)


def test_empty_nodes_take_no_time_and_lack_none():
    capture = of([4, None, 3], [(0, 1), (1, 2)], types=["kernel", "empty", "kernel"])
    path = critical_path(capture, 0)
    assert (path.length_ns, path.untimed, path.width) == (7, 0, 1)


def test_a_child_node_takes_as_long_as_its_body():
    (inner,) = of([3, 4], [(0, 1)]).graphs
    owner = Graph(
        "step", "step", nodes=(Node(0, "kernel", duration_ns=5), Node(1, "child", body=(1,))),
        edges=(Edge(0, 1),),
    )  # fmt: skip
    body = msgspec.structs.replace(inner, name="step/node 1", parent=(0, 1))
    assert critical_path(builders.capture([owner, body]), 0).length_ns == 12


def test_an_empty_graph():
    path = critical_path(of([], []), 0)
    assert (path.nodes, path.length_ns, path.width) == ((), 0, 0)


def test_many_nodes():
    path = critical_path(builders.huge(20_000), 0)
    assert path.width == 2
    assert len(path.slack_ns) == 10_000
