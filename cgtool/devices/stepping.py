"""A captured graph that runs one node at a time, on either device, and the orders that its edges
allow."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

Edges = Sequence[tuple[int, int]]
"""(node, node that waits for it)."""


class StepFailedError(Exception):
    """A node failed; the device cannot be used afterwards."""

    def __init__(self, node: int, error: RuntimeError) -> None:
        """``node``: its index in the graph; ``error``: of the device."""
        super().__init__(f"node {node}: {error}")
        self.node = node
        self.error = error


class Stepper(ABC):
    """One graph whose nodes are launched alone, each after the one before has ended."""

    count: int
    """Nodes."""
    edges: Edges

    def __init__(self) -> None:
        self.whole: dict[int, str] = {}
        """Nodes that cannot be launched alone, each with the reason. They do nothing here."""

    @abstractmethod
    def run(self, node: int) -> None:
        """Launch a node, and wait for it. Raises StepFailedError."""

    @abstractmethod
    def clear(self) -> None:
        """Fill with zeros what nodes compute and no one else holds: what an earlier run has left
        there is as right as what this one computes."""

    def running(self) -> AbstractContextManager[object]:
        """To be entered while nodes run."""
        return contextlib.nullcontext()

    def step(self, order: Sequence[int] | None = None) -> None:
        """Run all nodes, in the order of capture or in another one that the edges allow."""
        with self.running():
            for node in range(self.count) if order is None else order:
                self.run(node)

    def has_branches(self) -> bool:
        """Whether the edges allow another order than that of capture."""
        chain = {(node, node + 1) for node in range(self.count - 1)}
        return not chain <= set(self.edges)


def an_order(count: int, edges: Edges, choose: Callable[[int], int]) -> Iterator[int]:
    """An order of ``count`` nodes that the edges allow. ``choose(n)`` picks one of ``n`` nodes that
    may be next, of which the first has waited longest."""
    waits, then = [0] * count, [list[int]() for _ in range(count)]
    for source, target in edges:
        waits[target] += 1
        then[source].append(target)
    ready = [node for node in range(count) if not waits[node]]
    while ready:
        node = ready.pop(choose(len(ready)))
        yield node
        for target in then[node]:
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)


def swaps(order: Sequence[int]) -> list[tuple[int, int]]:
    """The swaps of neighbors that lead from the order of capture to another one: in each, the
    second node moves ahead of the first. If the edges allow both orders, they allow all between."""
    nodes = list(range(len(order)))
    done: list[tuple[int, int]] = []
    for place, node in enumerate(order):
        for at in range(nodes.index(node, place), place, -1):
            done.append((nodes[at - 1], node))
            nodes[at - 1 : at + 1] = node, nodes[at - 1]
    return done


def after_swaps(count: int, done: Sequence[tuple[int, int]]) -> list[int]:
    """The order of ``count`` nodes after some swaps."""
    nodes = list(range(count))
    places = list(range(count))
    for first, second in done:
        at = places[first]
        nodes[at], nodes[at + 1] = second, first
        places[second], places[first] = at, at + 1
    return nodes
