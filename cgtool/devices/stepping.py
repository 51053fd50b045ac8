"""A captured graph that runs one node at a time, on either device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence


class StepFailedError(Exception):
    """A node failed; the device cannot be used afterwards."""

    def __init__(self, node: int, error: RuntimeError) -> None:
        """``node``: its index in the graph; ``error``: of the device."""
        super().__init__(f"node {node}: {error}")
        self.node = node
        self.error = error


class Stepper(ABC):
    """One graph whose nodes are launched alone, each after the one before has ended.

    What the driver cannot launch alone is in ``whole``, by node, with the reason.
    """

    count: int
    """Nodes."""
    edges: Sequence[tuple[int, int]]
    """(node, node that waits for it)."""

    def __init__(self) -> None:
        self.whole: dict[int, str] = {}

    @abstractmethod
    def run(self, node: int) -> None:
        """Launch a node, and wait for it. Raises StepFailedError."""

    def step(self, order: Sequence[int] | None = None) -> None:
        """Run all nodes, in the order of capture or in another one that the edges allow."""
        for node in range(self.count) if order is None else order:
            self.run(node)


def an_order(
    count: int, edges: Sequence[tuple[int, int]], choose: Callable[[int], int]
) -> Iterator[int]:
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
