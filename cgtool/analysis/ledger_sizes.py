"""What tells the graphs of one line apart, where the program has named none: a size in which they
differ."""

from __future__ import annotations

from collections.abc import Sequence

from cgtool.model.capture import Capture, Node
from cgtool.model.ledger import LedgerGraph

_NODES = 64
"""How many nodes of each graph are compared."""


def sizes_of(capture: Capture, entries: Sequence[LedgerGraph]) -> dict[int, str]:
    """A size for each graph of a line, by its number: ``float32[8,4]`` or ``grid 8,1,1``, of the
    node in which most of them differ. Empty if the graphs have names, or none differs."""
    numbers = [each.graph for each in entries if each.graph is not None]
    if len(numbers) < 2 or any(each.key for each in entries):
        return {}
    sizes = [list(map(_size, capture.graphs[number].nodes[:_NODES])) for number in numbers]
    best: Sequence[str] = ()
    for texts in zip(*sizes, strict=False):
        if "" not in texts and len(set(texts)) > max(len(set(best)), 1):
            best = texts
    return dict(zip(numbers, best, strict=True)) if best else {}


def _size(node: Node) -> str:
    if node.shape is not None:
        return node.shape
    if node.kernel is not None:
        return f"grid {','.join(map(str, node.kernel.grid))}"
    work = node.copy or node.fill
    return "" if work is None else f"{work.bytes:,} B"
