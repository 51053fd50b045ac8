"""A graph as text, compared with an isomorphism of networkx, and the order of its nodes, with all
their paths."""

from __future__ import annotations

import time
from itertools import pairwise

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from networkx.algorithms.isomorphism import categorical_edge_match, categorical_node_match

from cgtool.analysis.graph.places import NodeDescriber
from cgtool.analysis.graph.reach import Reach
from cgtool.analysis.graph.topology import topology
from cgtool.model.capture import (
    Capture,
    Copy,
    Edge,
    Fill,
    Frame,
    Function,
    Graph,
    KernelLaunch,
    Node,
    Origin,
    Stream,
)
from tests import builders

SMALL = builders.FILL.replace("Li4E", "Li2E", 1)
"""Another kernel with the same short name."""
KINDS = ((0, 0, 0), (1, 0, 1), (2, 0, 1))


def kernels(names: str, edges: list[Edge]) -> Graph:
    """A node for each letter."""
    nodes = (
        Node(number, "kernel", kernel=KernelLaunch(ord(name) - ord("a"), (1, 1, 1), (1, 1, 1)))
        for number, name in enumerate(names)
    )
    return Graph("g", "step", nodes=tuple(nodes), edges=tuple(edges))


def capture_of(*graphs: Graph, **fields) -> Capture:
    return builders.capture(graphs, functions=tuple(map(Function, "abc")), **fields)


def text(*graphs: Graph, **fields) -> str:
    return topology(NodeDescriber(capture_of(*graphs, **fields)), 0)


@st.composite
def dags(draw: st.DrawFn, most: int = 7) -> Graph:
    names = draw(st.text("aab", max_size=most))
    pairs = [(a, b) for b in range(len(names)) for a in range(b)]
    chosen = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    kinds = st.sampled_from((KINDS[0], *KINDS))
    return kernels(names, [Edge(a, b, *draw(kinds)) for a, b in sorted(chosen)])


def relabeled(graph: Graph, number: list[int]) -> Graph:
    nodes = sorted(
        (replace(node, id=number[node.id]) for node in graph.nodes), key=lambda node: node.id
    )
    edges = (
        replace(edge, source=number[edge.source], target=number[edge.target])
        for edge in reversed(graph.edges)
    )
    return replace(graph, nodes=tuple(nodes), edges=tuple(edges))


@given(dags(12), st.data())
def test_the_order_of_creation_does_not_matter_and_all_else_does(graph, data):
    number = data.draw(st.permutations(range(len(graph.nodes))))
    assert text(relabeled(graph, number)) == text(graph)
    if graph.edges:
        at = data.draw(st.integers(0, len(graph.edges) - 1))
        fewer = graph.edges[:at] + graph.edges[at + 1 :]
        assert text(replace(graph, edges=fewer)) != text(graph)
        edge = graph.edges[at]
        other = Edge(edge.source, edge.target, *data.draw(st.sampled_from(KINDS)))
        if other.kind != edge.kind:
            assert text(replace(graph, edges=(*fewer, other))) != text(graph)
    if graph.nodes:
        at = data.draw(st.integers(0, len(graph.nodes) - 1))
        launch = replace(graph.nodes[at].kernel, function=2)
        changed = list(graph.nodes)
        changed[at] = replace(graph.nodes[at], kernel=launch)
        assert text(replace(graph, nodes=tuple(changed))) != text(graph)


def as_networkx(graph: Graph) -> networkx.DiGraph:
    result = networkx.DiGraph()
    for node in graph.nodes:
        result.add_node(node.id, does=node.kernel.function)
    for edge in graph.edges:
        result.add_edge(edge.source, edge.target, kind=edge.kind)
    return result


@given(dags(5), dags(5))
def test_equal_texts_are_isomorphic_graphs(first, second):
    same = networkx.is_isomorphic(
        as_networkx(first),
        as_networkx(second),
        categorical_node_match("does", None),
        categorical_edge_match("kind", None),
    )
    assert (text(first) == text(second)) == same


def test_what_a_node_does_is_in_it_and_where_it_is_from_is_not():
    launch = KernelLaunch(0, (4, 2, 1), (128, 1, 1), 512)
    nodes = (
        Node(0, "kernel", kernel=launch),
        Node(1, "memcpy", copy=Copy("htod", 64, 1, 2)),
        Node(2, "memset", fill=Fill(32, 1, 7)),
        Node(3, "host", detail="host function at 0x123"),
    )
    graph = Graph("g", "step", nodes=nodes, edges=(Edge(0, 1), Edge(0, 2, 1, 0, 1), Edge(2, 3)))
    fields = {"functions": (Function(builders.FILL),)}
    before = topology(NodeDescriber(builders.capture([graph], **fields)), 0)
    short = "vectorized_elementwise_kernel<FillFunctor<float>>"
    first, *rest = before.split("\n")
    assert first.startswith(f"[1] kernel {short}#")
    assert first.endswith(" grid=4x2x1 block=128x1x1 dynamic_shared_bytes=512")
    assert rest == [
        "memcpy htod bytes=64",
        "memset bytes=32 value=1  after [1] (programmatic)",
        "host",
    ]
    moved = [replace(node, origin=0, stream=0) for node in nodes]
    moved[1] = replace(moved[1], copy=Copy("htod", 64, 5, 6))
    moved[3] = replace(moved[3], detail="host function at 0x456")
    fields |= {
        "frames": (Frame("other.py", 3, "f"),),
        "origins": (Origin("aten::fill_", "layers.0", frames=(0,)),),
        "streams": (Stream(0, "stream 1"),),
    }
    other = replace(graph, name="other", nodes=tuple(moved))
    assert topology(NodeDescriber(builders.capture([other], **fields)), 0) == before
    fields["functions"] = (Function(SMALL),)
    after = topology(NodeDescriber(builders.capture([other], **fields)), 0)
    assert short in after
    assert after.split("\n")[1:] == before.split("\n")[1:]
    assert after != before


def bodies(first: str = "ab", second: str = "c") -> tuple[Graph, ...]:
    """a -> conditional (two bodies) -> c, and b beside all of it."""
    outer = kernels("aacb", [Edge(0, 1), Edge(1, 2)])
    nodes = list(outer.nodes)
    nodes[1] = Node(1, "conditional", body=(1, 2))
    chain = [Edge(number, number + 1) for number in range(len(first) - 1)]
    inner = replace(kernels(first, chain), name="g/node 1", parent=(0, 1))
    other = replace(kernels(second, []), name="g/node 1 else", parent=(0, 1))
    return replace(outer, nodes=tuple(nodes)), inner, other


def test_bodies_are_part_of_their_node():
    lines = text(*bodies()).split("\n")
    assert [line.split(" grid")[0] for line in lines] == [
        "kernel a",
        "conditional",
        "  body 1",
        "    kernel a",
        "    kernel b",
        "  body 2",
        "    kernel c",
        "kernel c",
        "kernel b",
    ]
    assert lines[-1].endswith("after nothing")
    assert len({text(*bodies(*names)) for names in (("ab", "c"), ("ba", "c"), ("ab", "b"))}) == 3


@given(dags(10), st.data())
def test_the_order_is_that_of_the_paths(graph, data):
    some = st.lists(st.integers(0, max(len(graph.nodes) - 1, 0)), unique=True)
    first, second = (data.draw(some) if graph.nodes else [] for _ in range(2))
    closure = networkx.transitive_closure(as_networkx(graph))
    reach = Reach(graph)
    path = closure.has_edge
    assert reach.waits(second, first) == [any(path(a, b) for a in first) for b in second]
    assert reach.may_overlap(first, second) == [
        any(a != b and not path(a, b) and not path(b, a) for b in second) for a in first
    ]


CHAIN = [Edge(a, b) for a, b in pairwise(range(10_000))]


@pytest.mark.parametrize(
    "edges",
    [
        CHAIN,
        [Edge(number, number + 64) for number in range(10_000 - 64)],
        [Edge(0, number) for number in range(1, 10_000)],
        [],
    ],
    ids=["chain", "64 chains", "fork", "no edges"],
)
def test_a_large_graph_takes_less_than_seconds(edges):
    capture = capture_of(kernels("a" * 10_000, edges))
    began = time.process_time()
    topology(NodeDescriber(capture), 0)
    reach, every = Reach(capture.graphs[0]), range(10_000)
    reach.waits(every[::2], every[1::2])
    reach.may_overlap(every[::2], every[1::2])
    assert time.process_time() - began < 5
