"""Views are true: what is shown as reachable is, and the other way round."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cgtool.analysis.graph.view import only, whole
from cgtool.model.capture import topological
from tests.analysis.graphs import dags, paths, shown_paths
from tests.builders import plain, small


def test_the_whole_graph_has_every_node_and_edge() -> None:
    graph = small().graphs[1]
    view = whole(1, graph)
    assert [item.members for item in view.items] == [[0], [1], [2], [3], [4]]
    ends = [(link.source, link.target, link.programmatic) for link in view.links]
    assert ends == [(0, 1, False), (1, 2, False), (1, 3, False), (2, 4, False), (3, 4, True)]


def test_a_path_through_hidden_nodes_is_one_link() -> None:
    graph = plain(5, [(0, 1), (1, 2), (2, 3), (3, 4)]).graphs[0]
    view = only(0, graph, [True, False, False, True, True])
    assert [item.members for item in view.items] == [[0], [3], [4]]
    assert [(link.source, link.target, link.hidden) for link in view.links] == [
        (0, 1, True),
        (1, 2, False),
    ]


def test_a_direct_edge_beside_a_hidden_path_stays_direct() -> None:
    graph = plain(3, [(0, 1), (1, 2), (0, 2)]).graphs[0]
    (link,) = only(0, graph, [True, False, True]).links
    assert not link.hidden


def test_hidden_ends_leave_nothing() -> None:
    graph = plain(4, [(0, 1), (1, 2), (1, 3)]).graphs[0]
    view = only(0, graph, [False, True, False, False])
    assert [item.members for item in view.items] == [[1]]
    assert view.links == []


def test_many_to_many_through_one_hidden_node_is_a_point_and_not_a_link_for_each_pair() -> None:
    many = 200
    edges = [(node, many) for node in range(many)]
    edges += [(many, many + 1 + node) for node in range(many)]
    graph = plain(2 * many + 1, edges).graphs[0]
    view = only(0, graph, [node != many for node in range(2 * many + 1)])
    assert len(view.links) == 2 * many
    assert sum(item.is_point for item in view.items) == 1


@given(dags(), st.data())
def test_selecting_keeps_paths_and_invents_none(
    dag: tuple[int, list[tuple[int, int]]], data: st.DataObject
) -> None:
    count, edges = dag
    shown = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    graph = plain(count, edges).graphs[0]
    view = only(0, graph, shown)
    node_of = {at: item.members[0] for at, item in enumerate(view.items) if item.members}
    assert sorted(node_of.values()) == [node for node in range(count) if shown[node]]
    expected = {(a, b) for a, b in paths(count, edges) if shown[a] and shown[b]}
    connected = {
        (node_of[a], node_of[b]) for a, b in shown_paths(view) if a in node_of and b in node_of
    }
    assert connected == expected
    assert all(link.source < link.target for link in view.links)
    assert len(view.links) <= len(edges)
    for link in view.links:
        ends = (node_of.get(link.source), node_of.get(link.target))
        assert link.hidden == (ends not in set(edges))


@given(dags())
def test_the_order_is_topological(dag: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = dag
    order = topological(count, plain(count, edges).graphs[0].edges)
    assert order is not None
    assert sorted(order) == list(range(count))
    place = {node: at for at, node in enumerate(order)}
    assert all(place[a] < place[b] for a, b in edges)


def test_a_cycle_has_no_order() -> None:
    assert topological(3, plain(3, [(0, 1), (1, 2), (2, 0)]).graphs[0].edges) is None
    assert topological(1, plain(1, [(0, 0)]).graphs[0].edges) is None


def test_a_hidden_lattice_is_one_point() -> None:
    """Every node of a row after every node of the row before, only the ends shown."""
    rows, width = 50, 4
    edges = [
        (row * width + a, (row + 1) * width + b)
        for row in range(rows - 1)
        for a in range(width)
        for b in range(width)
    ]
    count = rows * width
    shown = [node < width or node >= count - width for node in range(count)]
    view = only(0, plain(count, edges).graphs[0], shown)
    assert sum(item.is_point for item in view.items) == 1
    assert len(view.links) == 2 * width
