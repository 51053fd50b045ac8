"""Names for the graphs of one line, where the program has given none: a size in which they
differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cgtool.analysis.ledger_findings import by_line
from cgtool.model.capture import Capture, Node
from cgtool.model.ledger import Ledger, LedgerGraph

_NODES = 64
"""How many nodes of each graph are compared."""


def sizes_of(capture: Capture, ledger: Ledger) -> dict[int, str]:
    """A size for each graph that has no name and differs from others of its line, by its number:
    ``float32[8,4]`` or ``grid 8,1,1``, of the node in which most of them differ."""
    return {
        number: size
        for group in by_line(capture, ledger)
        for _, entries in group.by_caller()
        for number, size in _of_line(capture, entries)
    }


def _of_line(capture: Capture, entries: Sequence[LedgerGraph]) -> Iterable[tuple[int, str]]:
    numbers = [each.graph for each in entries if each.graph is not None]
    if len(numbers) < 2 or any(each.key for each in entries):
        return ()
    sizes = [list(map(_size, capture.graphs[number].nodes[:_NODES])) for number in numbers]
    best: Sequence[str] = ()
    for texts in zip(*sizes, strict=False):
        if "" not in texts and len(set(texts)) > max(len(set(best)), 1):
            best = texts
    return zip(numbers, best, strict=True) if best else ()


def _size(node: Node) -> str:
    if node.shape is not None:
        return node.shape
    if node.kernel is not None:
        return f"grid {','.join(map(str, node.kernel.grid))}"
    work = node.copy or node.fill
    return "" if work is None else f"{work.bytes:,} B"
