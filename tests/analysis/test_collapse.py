"""Collapsing: fewer boxes, the same paths, no cycle."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cgtool.analysis.graph.places import Places
from cgtool.analysis.graph.view import (
    View,
    by_module,
    module_tree,
    only,
    whole,
)
from cgtool.model.capture import Capture, Copy, Edge, Frame, Graph, Node, Origin
from tests.analysis.graphs import dags, paths, shown_paths
from tests.builders import capture

MODULES = ["a", "a.b", "a.b.c", "a.d", "e", "", None]


def with_modules(modules: list[str | None], edges: list[tuple[int, int]]) -> Capture:
    """A graph whose node i ran in modules[i]."""
    nodes = tuple(Node(index, "kernel", MODULES.index(name)) for index, name in enumerate(modules))
    graph = Graph("step", "step", nodes=nodes, edges=tuple(Edge(*edge) for edge in edges))
    origins = tuple(Origin("aten::add", name, None, (0,)) for name in MODULES)
    return capture([graph], origins=origins, frames=(Frame("m.py", 3, "f"),))


def titles(view: View) -> list[tuple[str | None, list[int]]]:
    return [(item.title, item.members) for item in view.items]


def test_modules_to_a_depth() -> None:
    recorded = with_modules(["a.b", "a.b.c", "a.d", "e", "e"], [(0, 1), (1, 2), (2, 3), (3, 4)])
    view = whole(0, recorded.graphs[0])
    assert titles(by_module(recorded, view, 1)) == [("a", [0, 1, 2]), ("e", [3, 4])]
    assert titles(by_module(recorded, view, 2)) == [("a.b", [0, 1]), (None, [2]), ("e", [3, 4])]
    assert titles(by_module(recorded, view, 0)) == [("step", [0, 1, 2, 3, 4])]


def test_a_module_that_runs_twice_is_two_boxes() -> None:
    recorded = with_modules(["a", "a", "e", "a", "a"], [(0, 1), (1, 2), (2, 3), (3, 4)])
    view = by_module(recorded, whole(0, recorded.graphs[0]), 1)
    assert titles(view) == [("a", [0, 1]), (None, [2]), ("a", [3, 4])]


def test_two_streams_that_interleave_are_one_box_each() -> None:
    recorded = with_modules(["a", "e", "a", "e", "a", "e"], [(0, 2), (2, 4), (1, 3), (3, 5)])
    view = by_module(recorded, whole(0, recorded.graphs[0]), 1)
    assert titles(view) == [("a", [0, 2, 4]), ("e", [1, 3, 5])]
    assert view.links == []


def test_no_module_is_grouped_by_function() -> None:
    recorded = with_modules([None, None, "a"], [(0, 1), (1, 2)])
    view = by_module(recorded, whole(0, recorded.graphs[0]), 1)
    assert titles(view) == [("f (m.py)", [0, 1]), (None, [2])]


def test_a_copy_to_the_host_stays_a_box_of_its_own() -> None:
    recorded = with_modules(["a"] * 5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    (graph,) = recorded.graphs
    nodes = list(graph.nodes)
    nodes[2] = msgspec.structs.replace(nodes[2], type="memcpy", copy=Copy("dtoh", 4))
    recorded = msgspec.structs.replace(
        recorded, graphs=(msgspec.structs.replace(graph, nodes=tuple(nodes)),)
    )
    view = by_module(recorded, whole(0, recorded.graphs[0]), 1)
    assert [item.members for item in view.items] == [[0, 1], [2], [3, 4]]


@given(dags(), st.data(), st.integers(0, 3))
def test_collapsing_keeps_paths_between_boxes(
    dag: tuple[int, list[tuple[int, int]]], data: st.DataObject, depth: int
) -> None:
    count, edges = dag
    modules = [data.draw(st.sampled_from(MODULES)) for _ in range(count)]
    shown = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    held = with_modules(modules, edges)
    selected = only(0, held.graphs[0], shown)
    view = by_module(held, selected, depth)
    box = {member: at for at, item in enumerate(view.items) for member in item.members}
    assert sorted(box) == [node for node in range(count) if shown[node]]
    reachable = shown_paths(view)
    # No path is lost, no link goes back, and each link is there for a path between members.
    true = {(a, b) for a, b in paths(count, edges) if shown[a] and shown[b]}
    assert {(box[a], box[b]) for a, b in true if box[a] != box[b]} <= reachable
    assert all(link.source < link.target for link in view.links)
    between = {(box[a], box[b]) for a, b in true}
    points = {at for at, item in enumerate(view.items) if item.is_point}
    for link in view.links:
        if not {link.source, link.target} & points:
            assert (link.source, link.target) in between or any(
                not item.members for item in selected.items
            )


def test_a_module_that_runs_in_forward_and_again_in_backward_is_two_visits() -> None:
    modules = ["a.b", "a.d", None, "a.d", "a.b"]
    recorded = with_modules(modules, [(0, 1), (1, 2), (2, 3), (3, 4)])
    graph = recorded.graphs[0]
    root = module_tree(whole(0, graph), graph, Places(recorded), 2)
    assert root.own == [2]
    assert [
        (visit.path, [(inner.path, inner.own) for inner in visit.inside.values()])
        for visit in root.inside.values()
    ] == [("a", [("a.b", [0]), ("a.d", [1])]), ("a", [("a.d", [3]), ("a.b", [4])])]
