"""What ``verify`` on a GPU asks of a graph, from edges that a driver would report."""

from __future__ import annotations

import types
from typing import Any

import pytest

from cgtool.devices.cuda import verify


@pytest.mark.parametrize(
    ("count", "edges", "is_chain"),
    [
        (0, (), True),
        (1, (), True),
        (3, ((1, 2), (2, 3)), True),
        (2, (), False),  # two roots
        (3, ((1, 2), (1, 3)), False),  # a fork
        (3, ((1, 3), (2, 3)), False),  # a join
        (4, ((1, 2), (1, 3), (2, 4), (3, 4)), False),
    ],
)
def test_in_a_chain_no_two_nodes_run_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, count: int, edges: tuple[Any, ...], is_chain: bool
) -> None:
    graph: Any = types.SimpleNamespace(template=1, node_count=lambda: count)
    monkeypatch.setattr(verify, "graph_edges", lambda _: ((*edge, 0) for edge in edges))
    assert verify._is_chain(graph) == is_chain
