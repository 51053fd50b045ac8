"""A graph on one screen: what is folded is equal, and nothing is lost."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cgtool.analysis.graph.fold import SCREEN_ROWS, fit, runs
from cgtool.analysis.graph.view import View, whole
from cgtool.model.capture import (
    Argument,
    ArgumentList,
    Call,
    Capture,
    Copy,
    Edge,
    Frame,
    Graph,
    Node,
    Origin,
    Stream,
    topological,
)
from tests.analysis.graphs import dags
from tests.builders import capture, huge, small
from tests.recorded import recorded
from tests.strategies import captures

Pairs = list[tuple[int, int]]


def graph_of(
    parts: list[str | None],
    edges: Pairs,
    *,
    ops: list[str] | None = None,
    streams: list[int] | None = None,
) -> Capture:
    """Node i of module ``parts[i]``, with op ``ops[i]``."""
    count = len(parts)
    names = ops or ["add"] * count
    origins = tuple(
        Origin(f"aten::{op}", module, None, (0,)) for op, module in zip(names, parts, strict=True)
    )
    nodes = tuple(Node(at, "op", at, stream=streams[at] if streams else 0) for at in range(count))
    graph = Graph("step", "step", nodes=nodes, edges=tuple(Edge(*edge) for edge in edges))
    return capture(
        [graph],
        origins=origins,
        frames=(Frame("m.py", 3, "f"),),
        streams=tuple(Stream(at, f"stream {at}") for at in range(max(streams or [0]) + 1)),
    )


def layers(count: int, ops: list[str], *, odd: dict[int, list[str]] | None = None) -> Capture:
    """A chain: an op before, layers one after the other, an op behind."""
    parts: list[str | None] = ["first"]
    names = ["embedding"]
    for layer in range(count):
        for op in (odd or {}).get(layer, ops):
            parts.append(f"layers.{layer}.{op}")
            names.append(op)
    parts.append("last")
    names.append("mm")
    return graph_of(parts, [(at, at + 1) for at in range(len(parts) - 1)], ops=names)


def fitted(held: Capture, depth: int | None = None) -> View:
    (view,), _ = fit(held, [whole(0, held.graphs[0])], depth)
    return view


def is_true(held: Capture, view: View) -> None:
    """Every node is in one box; every edge in one box or one link, as often as that says; what is
    folded is equal in everything that a reader sees, edge by edge."""
    graph = held.graphs[view.graph]
    box = {node: at for at, item in enumerate(view.items) for node in item.members}
    assert sorted(node for item in view.items for node in item.members) == list(
        range(len(graph.nodes))
    )
    assert sum(link.edges for link in view.links) + sum(item.inside for item in view.items) == len(
        graph.edges
    )
    links = Counter[tuple[int, int]]()
    for link in view.links:
        assert link.source < link.target or link.carried is not None
        links[link.source, link.target] += link.edges
    for edge in graph.edges:
        source, target = box[edge.source], box[edge.target]
        links[source, target] -= 1
        if source == target and links[source, target] < 0:
            links[source, target] += 1
            view.items[source].inside -= 1
    assert not +links
    assert not -links
    assert all(item.inside == 0 for item in view.items)
    for item in view.items:
        first = [graph.nodes[node] for node in item.once]
        for at in range(0, len(item.members), len(first) or 1):
            for node, like in zip(item.members[at:], first, strict=False):
                other = graph.nodes[node]
                assert other.type == like.type
                assert (other.copy and other.copy.kind) == (like.copy and like.copy.kind)
                assert held.origins[other.origin].op == held.origins[like.origin].op
    edges = Counter((edge.source, edge.target) for edge in graph.edges)
    for link in view.links:
        source, target = view.items[link.source], view.items[link.target]
        both = source.fold == target.fold is not None
        if both and len(source.once) == len(target.once) == 1 and len(view.folds) == 1:
            step = 0 if link.carried is None else 1
            for a, b in zip(source.members, target.members[step:], strict=False):
                assert edges[a, b], "a link inside a fold is there in every repeat"
        # What waits for one repeat and what one repeat waits for, all do, but for the ends.
        for folded, other, end in ((target, source, 0), (source, target, -1)):
            if len(folded.once) == len(other.members) == 1 and folded.repeats > 1:
                assert other.fold is None
                (node,) = other.members
                pairs = [(node, at) if end == 0 else (at, node) for at in folded.members]
                assert sum(edges[pair] for pair in pairs) in (edges[pairs[end]], folded.repeats)
    drawn, outside = runs(view)
    assert sorted(at for run in drawn for at in run.items) == list(range(len(view.items)))
    straight = {link.carried for link in view.links} - {link.carried for link in outside} - {None}
    for run in drawn:
        for first, second in zip(run.items, run.items[1:], strict=False):
            (into,) = (x for x in view.links if x.target == second and x.carried is None)
            assert into.source == first
            (out,) = (x for x in view.links if x.source == first and x.carried is None)
            assert out.target == second
    assert all(
        sum(link.carried == fold for link in view.links) == 1 and fold is not None
        for fold in straight
    )


def test_equal_layers_are_drawn_once_with_their_count() -> None:
    held = layers(24, ["norm", "mm", "gelu"])
    view = fitted(held)
    assert len(view.items) == 5
    (fold,) = view.folds
    assert (fold.modules, fold.times, fold.differs) == (("layers.*",), 24, ())
    assert [item.repeats for item in view.items] == [1, 24, 24, 24, 1]
    (run,), links = runs(view)
    assert run.around is None
    assert links == []
    is_true(held, view)


def test_a_layer_that_differs_is_not_folded() -> None:
    held = layers(12, ["norm", "mm", "gelu"], odd={5: ["norm", "mm", "mm", "gelu"]})
    view = fitted(held)
    assert [fold.times for fold in view.folds] == [5, 6]
    is_true(held, view)


def test_a_copy_to_the_host_in_one_layer_is_not_folded_away() -> None:
    held = layers(12, ["norm", "mm", "gelu"])
    (graph,) = held.graphs
    nodes = list(graph.nodes)
    at = 1 + 3 * 7 + 1
    nodes[at] = msgspec.structs.replace(nodes[at], type="memcpy", copy=Copy("dtoh", 4))
    held = msgspec.structs.replace(
        held, graphs=(msgspec.structs.replace(graph, nodes=tuple(nodes)),)
    )
    for depth in (None, 2, 1, 0):
        view = fitted(held, depth)
        (item,) = (item for item in view.items if at in item.members)
        assert item.members == [at]
        assert item.title is None


def test_an_edge_that_only_one_layer_has_keeps_it_apart() -> None:
    held = layers(12, ["norm", "mm", "gelu"])
    (graph,) = held.graphs
    edges = (*graph.edges, Edge(1 + 3 * 6, 1 + 3 * 6 + 2))
    held = msgspec.structs.replace(held, graphs=(msgspec.structs.replace(graph, edges=edges),))
    view = fitted(held)
    is_true(held, view)
    (item,) = (item for item in view.items if 1 + 3 * 6 in item.members)
    assert item.repeats == 1


def test_parallel_parts_are_one_frame_with_the_edges_counted_and_their_streams_named() -> None:
    parts: list[str | None] = ["first"]
    edges: Pairs = []
    streams = [0]
    for expert in range(8):
        edges += [(0, len(parts)), (len(parts), len(parts) + 1)]
        parts += [f"experts.{expert}.up", f"experts.{expert}.down"]
        streams += [expert + 1] * 2
    edges += [(2 * expert + 2, len(parts)) for expert in range(8)]
    held = graph_of([*parts, "last"], edges, streams=[*streams, 0])
    view = fitted(held)
    is_true(held, view)
    (fold,) = view.folds
    assert (fold.modules, fold.times, fold.differs) == (("experts.*",), 8, ("on 8 streams",))
    drawn, links = runs(view)
    assert [(run.items, run.around) for run in drawn] == [((0,), None), ((1, 2), 0), ((3,), None)]
    assert [link.edges for link in links] == [8, 8]


def test_a_loop_of_several_modules_is_folded_too() -> None:
    parts: list[str | None] = ["first", *["cell", "head"] * 20]
    held = graph_of(parts, [(at, at + 1) for at in range(len(parts) - 1)])
    view = fitted(held)
    assert [(fold.modules, fold.times) for fold in view.folds] == [(("cell", "head"), 20)]
    assert [item.repeats for item in view.items] == [1, 20, 20]
    is_true(held, view)


def test_a_fold_in_a_fold() -> None:
    parts: list[str | None] = []
    for layer in range(6):
        for step in range(8):
            parts += [f"layers.{layer}.cells.{step}.a", f"layers.{layer}.cells.{step}.b"]
        parts.append(f"layers.{layer}.out")
    held = graph_of(parts, [(at, at + 1) for at in range(len(parts) - 1)])
    view = fitted(held)
    assert [(fold.modules, fold.times, fold.parent) for fold in view.folds] == [
        (("layers.*",), 6, None),
        (("layers.*.cells.*",), 8, 0),
    ]
    assert [item.repeats for item in view.items] == [48, 48, 6]
    ((run,), links) = runs(view)
    assert (run.items, links) == ((0, 1, 2), [])
    is_true(held, view)


def test_other_arguments_are_named() -> None:
    held = layers(12, ["norm", "dropout"])
    (graph,) = held.graphs
    calls = tuple(
        Call(arguments=1 if held.origins[node.origin].op == "aten::dropout" and node.id > 12 else 0)
        for node in graph.nodes
    )
    nodes = tuple(msgspec.structs.replace(node, call=node.id) for node in graph.nodes)
    held = msgspec.structs.replace(
        held,
        graphs=(msgspec.structs.replace(graph, nodes=nodes, calls=calls),),
        argument_lists=(ArgumentList(()), ArgumentList((Argument("p", "0.1"),))),
    )
    (fold,) = fitted(held).folds
    assert fold.differs == ("arguments of dropout differ",)


@st.composite
def repeating(draw: st.DrawFn) -> Capture:
    """Repeats of a small graph, in a row or beside each other, and sometimes something odd."""
    body, body_edges = draw(dags(5))
    times = draw(st.integers(2, 7))
    size = st.integers(0, body - 1)
    pairs = st.lists(st.tuples(size, size), max_size=3, unique=True)
    carried, odd = draw(pairs), draw(st.lists(st.tuples(*[st.integers(0, 99)] * 2), max_size=2))
    ops = draw(st.lists(st.sampled_from(["mm", "add"]), min_size=body, max_size=body))
    before, behind = draw(st.lists(size, max_size=3)), draw(st.lists(size, max_size=3))
    parts: list[str | None] = ["first"]
    names = ["embedding"]
    edges: set[tuple[int, int]] = set()
    for layer in range(times):
        start = 1 + layer * body
        parts += [f"layers.{layer}.{at % 2}" for at in range(body)]
        names += ops
        edges |= {(start + a, start + b) for a, b in body_edges}
        edges |= {(start + a, start + body + b) for a, b in carried if layer < times - 1}
        edges |= {(0, start + at) for at in before}
        edges |= {(start + at, 1 + times * body) for at in behind}
    count = len(parts) + 1
    edges |= {(a % count, b % count) for a, b in odd}
    assume(topological(count, [Edge(*edge) for edge in edges]) is not None)
    return graph_of([*parts, "last"], sorted(edges), ops=[*names, "mm"])


@settings(max_examples=150)
@given(repeating(), st.none() | st.integers(0, 3))
def test_nothing_is_lost_and_nothing_is_invented(held: Capture, depth: int | None) -> None:
    is_true(held, fitted(held, 3 if depth is None else depth))


@settings(max_examples=30)
@given(captures(), st.integers(0, 3))
def test_nothing_is_lost_of_any_capture(held: Capture, depth: int) -> None:
    views, _ = fit(held, [whole(at, graph) for at, graph in enumerate(held.graphs)], depth)
    for view in views:
        nodes = held.graphs[view.graph].nodes
        assert sorted(node for item in view.items for node in item.members) == list(
            range(len(nodes))
        )
        edges = sum(link.edges for link in view.links) + sum(item.inside for item in view.items)
        assert edges == len(held.graphs[view.graph].edges)


def test_captures_of_an_h200_fold() -> None:
    held = recorded("transformer")
    views, said = fit(held, [whole(at, graph) for at, graph in enumerate(held.graphs)])
    assert said == "190 nodes in 61 rows: repeated parts drawn once"
    for view in views:
        is_true(held, view)
        assert [(fold.modules, fold.type, fold.times) for fold in view.folds] == [
            (("layers.*",), "Block", 4)
        ]


def test_what_fits_stays_as_it_is() -> None:
    held = small()
    views = [whole(index, graph) for index, graph in enumerate(held.graphs)]
    kept, said = fit(held, views)
    assert said is None
    assert kept == views


def test_the_finest_way_that_fits_a_screen_is_taken() -> None:
    for count, parts, said in (
        (300, 15, "300 nodes in 150 rows: modules to depth 4"),
        (3000, 70, "3,000 nodes in 140 rows: modules to depth 2"),
        (3000, 96, "3,000 nodes in 2 rows: modules to depth 1"),
    ):
        held = huge(count, layers=parts)
        views, words = fit(held, [whole(at, graph) for at, graph in enumerate(held.graphs)])
        assert words == said
        assert sum(len(view.items) for view in views) <= SCREEN_ROWS
