"""Orders of the nodes of a graph that its edges allow."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgtool.devices.stepping import Stepper, an_order, moved_ahead


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 12))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = draw(st.lists(pairs.filter(lambda pair: pair[0] < pair[1]), max_size=20))
    return count, edges


def allows(edges, order):
    place = {node: at for at, node in enumerate(order)}
    return all(place[source] < place[target] for source, target in edges)


@given(graphs(), st.integers())
def test_each_order_has_all_nodes_and_keeps_all_edges(graph, seed):
    count, edges = graph
    order = [*an_order(count, edges, random.Random(seed).randrange)]
    assert sorted(order) == list(range(count))
    assert allows(edges, order)


@given(graphs(), st.integers(), st.data())
def test_a_node_moves_ahead_through_orders_that_the_edges_allow(graph, seed, data):
    count, edges = graph
    order = [*an_order(count, edges, random.Random(seed).randrange)]
    place = data.draw(st.integers(0, count - 1))
    ahead = sum(each < order[place] for each in order[place + 1 :])
    steps = [moved_ahead(order, place, after) for after in range(ahead, -1, -1)]
    assert steps[0] == [*order[:place], *sorted(order[place:])]
    assert steps[-1] == [*order[: place + 1], *sorted(order[place + 1 :])]
    for before, after in pairwise(steps):
        assert allows(edges, after)
        at = after.index(order[place])
        assert before[:at] == after[:at] and before[at + 2 :] == after[at + 2 :]
        assert before[at : at + 2] == after[at : at + 2][::-1]


def test_the_first_of_those_that_may_be_next_has_waited_longest():
    assert [*an_order(4, [(0, 2), (1, 3)], lambda _: 0)] == [0, 1, 2, 3]
    assert [*an_order(4, [(0, 2), (1, 3)], lambda count: count - 1)] == [1, 3, 0, 2]


class Nodes(Stepper):
    """A graph that runs nothing."""

    def __init__(self, count, edges):
        super().__init__()
        self.count, self.edges = count, edges

    def clear(self):
        """Nothing is computed."""

    def _launch(self, node):
        """Nothing runs."""


@pytest.mark.parametrize(
    ("count", "edges", "has_branches"),
    [
        (0, [], False),
        (1, [], False),
        (3, [(0, 1), (1, 2)], False),
        (3, [(0, 1), (1, 2), (0, 2)], False),
        (2, [], True),  # two roots
        (3, [(0, 1), (0, 2)], True),  # a fork
        (3, [(0, 2), (1, 2)], True),  # a join
        (4, [(0, 1), (0, 2), (1, 3), (2, 3)], True),
    ],
)
def test_a_chain_has_no_other_order(count, edges, has_branches):
    assert Nodes(count, edges).has_branches() == has_branches
