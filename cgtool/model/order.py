"""A topological order of a graph's nodes."""

from __future__ import annotations

from collections.abc import Sequence

from cgtool.model.capture import Edge


def topological(count: int, edges: Sequence[Edge]) -> list[int] | None:
    """Node ids so that every edge leads forward; None when the edges make a cycle.

    Creation order is one for every graph that CUDA captured, and is taken when it is. Linear in
    nodes and edges.
    """
    if all(edge.source < edge.target for edge in edges):
        return list(range(count))
    waits = [0] * count
    after: list[list[int]] = [[] for _ in range(count)]
    for edge in edges:
        waits[edge.target] += 1
        after[edge.source].append(edge.target)
    order = [node for node in range(count) if waits[node] == 0]
    for node in order:
        for target in after[node]:
            waits[target] -= 1
            if waits[target] == 0:
                order.append(target)
    return order if len(order) == count else None
