"""Properties of a graph, computed the plain way: a path from one node to another."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from cgtool.analysis.graph.view import View

Pairs = set[tuple[int, int]]


def paths(count: int, edges: Iterable[tuple[int, int]]) -> Pairs:
    """All (a, b) with a path from a to b."""
    after: dict[int, set[int]] = {node: set() for node in range(count)}
    for a, b in edges:
        after[a].add(b)
    pairs: Pairs = set()
    for start in range(count):
        todo = list(after[start])
        visited: set[int] = set()
        while todo:
            node = todo.pop()
            if node not in visited:
                visited.add(node)
                todo += after[node]
        pairs |= {(start, node) for node in visited}
    return pairs


def shown_paths(view: View) -> Pairs:
    """The same between the items of a view, by position."""
    return paths(len(view.items), [(link.source, link.target) for link in view.links])


@st.composite
def dags(draw: st.DrawFn, most: int = 14) -> tuple[int, list[tuple[int, int]]]:
    """A graph without cycles, its ids in no particular order."""
    count = draw(st.integers(1, most))
    rank = draw(st.permutations(range(count)))
    pair = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    pairs = draw(st.sets(pair, max_size=3 * count))
    return count, sorted((a, b) for a, b in pairs if rank[a] < rank[b])
