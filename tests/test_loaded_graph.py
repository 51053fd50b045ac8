"""What a test asserts of the graphs of ``cgtool.load``."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from msgspec.structs import replace

import cgtool
from cgtool.api import LoadedCapture, LoadedGraph
from cgtool.model.capture import Copy, Edge, Fill, Graph, KernelLaunch, Node
from cgtool.model.ledger import COMPILE
from tests import builders
from tests.analysis.test_topology import bodies, capture_of
from tests.strategies import captures

SAMPLES = Path(__file__).parents[1] / "samples" / "captures"


def loaded(capture) -> LoadedCapture:
    return LoadedCapture(Path("run.cgt"), capture)


def copies_and_fills() -> LoadedGraph:
    """htod, dtod, a memset, dtoh; then a kernel that starts early."""
    nodes = (
        Node(0, "memcpy", copy=Copy("htod", 64)),
        Node(1, "memcpy", copy=Copy("dtod", 64)),
        Node(2, "memset", fill=Fill(64, 0)),
        Node(3, "memcpy", copy=Copy("dtoh", 64)),
        Node(4, "kernel", kernel=KernelLaunch(0, (1, 1, 1), (1, 1, 1))),
        Node(5, "kernel", kernel=KernelLaunch(1, (1, 1, 1), (1, 1, 1))),
    )
    edges = (Edge(0, 1), Edge(1, 4), Edge(4, 5, 1, 0, 1), Edge(2, 3))
    return loaded(capture_of(Graph("g", "step", nodes=nodes, edges=edges))).graphs[0]


def ids(nodes) -> list[int]:
    return [node.id for node in nodes]


def test_selections_by_kind():
    graph = copies_and_fills()
    assert ids(graph.copies()) == [0, 1, 3]
    assert ids(graph.copies(host=True)) == [0, 3]
    assert ids(graph.copies(host=False)) == [1]
    assert ids(graph.memsets()) == [2]
    assert ids(graph.kernels()) == [4, 5]
    assert ids(graph.kernels("a")) == ids(graph.kernels()[:1]) == [4]
    assert ids(graph.nodes("type!=kernel", node="1-4")) == [1, 2, 3]
    assert ids(graph.kernels().where(lambda node: node.kernel == "b")) == [5]
    assert not graph.ops("*")
    assert graph.nodes.streams == ()


def test_an_edge_says_of_which_kind_it_is():
    graph = copies_and_fills()
    (edge,) = graph.kernels("a").edges_to(graph.kernels("b"))
    assert (edge.source.id, edge.target.id, edge.kind) == (4, 5, "programmatic")
    assert [each.kind for each in graph.copies().edges_to(graph.nodes)] == ["full", "full"]
    assert not graph.memsets().edges_to(graph.kernels())


def test_order_is_of_each_with_any():
    graph = copies_and_fills()
    kernels, copies = graph.kernels(), graph.copies()
    assert copies.before(kernels)
    assert not kernels.before(copies)
    assert kernels.after(graph.nodes(node="0|3"))
    assert graph.memsets().parallel_to(kernels)
    assert not kernels.parallel_to(kernels)


def test_nothing_holds_without_nodes():
    graph = copies_and_fills()
    none, some = graph.kernels("nix"), graph.kernels()
    for relation in (
        none.before(some), some.before(none), none.after(some), some.after(none),
        none.parallel_to(some), some.parallel_to(none),
    ):  # fmt: skip
        assert not relation
        assert "no node with kernel=nix; the graph has: " in repr(relation)


def test_bodies_are_graphs_of_their_own():
    outer, *inner = loaded(capture_of(*bodies())).graphs
    assert list(outer.bodies) == inner
    assert (outer.kernels().count, outer.depth) == (3, 3)
    assert [body.kernels().count for body in outer.bodies] == [2, 1]


def test_all_nodes_are_in_the_text_and_some_in_the_line():
    graph = cgtool.load(SAMPLES / "transformer.cgt").graph("forward")
    relation = graph.kernels().before(graph.kernels("*gather*"))
    assert repr(relation) == (
        "<not before: no path from any node with type=kernel to 1 of 1 node with kernel=*gather*: "
        "0 aten::embedding vectorized_gather_kernel<long> transformer.py:50>"
    )
    relation = graph.kernels("*gemm*").parallel_to(graph.kernels())
    head, *nodes = str(relation).split("\n")
    assert head.startswith("not parallel: ")
    assert len(nodes) == 17
    assert all("sm80_xmma_gemm" in node and "transformer.py:" in node for node in nodes)
    assert repr(relation).endswith(", and 16 more>")


def test_a_simulated_capture_has_no_kernels_to_assert_on():
    simulated = replace(builders.small(), environment=builders.small().environment)
    environment = replace(simulated.environment, simulated=True)
    graph = loaded(replace(simulated, environment=environment)).graphs[0]
    for select in (graph.kernels, graph.copies, graph.memsets):
        with pytest.raises(cgtool.CgtoolError, match="are ops"):
            select()


def test_a_graph_of_a_program_is_chosen_by_what_the_ledger_knows():
    serving = builders.serving()
    engine = serving.ledger.graphs[0]
    noted = replace(engine, key="batch 8, layers 2")
    ledger = replace(serving.ledger, graphs=(noted, *serving.ledger.graphs[1:]))
    run = loaded(replace(serving, ledger=ledger))
    for facts in ({"number": 0}, {"rows": 17}, {"batch": 8}, {"layers": 2, "rows": 5}):
        assert run.graph(line="model.py:13", **facts) is run.graphs[0]
    assert run.graph(owner=COMPILE, key="0/1 inference") is run.graphs[6]
    with pytest.raises(KeyError, match="2 graphs with key='0/0 inference':") as raised:
        run.graph(key="0/0 inference")
    assert str(raised.value).count("\n") == 2
    with pytest.raises(KeyError, match="0 graphs with batch=16; there are:") as raised:
        run.graph(batch=16)
    assert "rows=5 or 17, padded_rows=32, 7 nodes, captured at model.py:13" in str(raised.value)


def test_the_candidates_are_named():
    capture = cgtool.load(SAMPLES / "mlp.cgt")
    with pytest.raises(KeyError, match="2 graphs:\n  name='forward', 12 nodes\n  name='b"):
        capture.graph()
    with pytest.raises(KeyError, match=r"0 graphs with line='mlp\.py:3', batch=8; "):
        capture.graph(line="mlp.py:3", batch=8)


@given(captures())
def test_any_capture_has_texts_that_fit(capture):
    for graph in loaded(capture).graphs:
        graph.topology().encode()
        nodes = graph.nodes("type=*")
        for text in map(repr, (nodes, nodes.parallel_to(nodes), nodes.before(nodes[:3]))):
            assert text.isprintable()
            assert len(text) <= 240  # pytest shows no more
        assert graph.depth <= len(graph.nodes)
