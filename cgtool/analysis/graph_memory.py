"""What each graph of a program adds to the memory of its pool and of the driver, and what one more
size would add."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.ledger_findings import by_line
from cgtool.analysis.ledger_sizes import sizes_of
from cgtool.analysis.units import bytes_text
from cgtool.model.capture import Capture
from cgtool.model.ledger import Ledger

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_FEWEST = 3
"""Sizes of one line, from which one more is estimated."""


@dataclass(frozen=True)
class GraphMemoryRow:
    """One graph."""

    number: int | None
    """For ``dump --graph``."""
    line: str
    key: str
    """The owner's name of it, or a size in which it differs from others."""
    pool: str
    grown_bytes: int
    """What the pool had reserved more after this capture than after the one before: the sum over
    the graphs of a pool is what ``torch.cuda.memory_snapshot()`` says after the last."""
    kept_bytes: int | None
    """What more of the pool is in use, mostly for its results: the rest is for later captures."""
    exec_bytes: int | None
    """The driver's memory for the executable graph."""

    @property
    def total_bytes(self) -> int:
        """Of pool and driver together."""
        return self.grown_bytes + (self.exec_bytes or 0)


def graph_memory(capture: Capture, ledger: Ledger) -> tuple[GraphMemoryRow, ...]:
    """The graphs whose pool is known, in order of their capture."""
    sizes, lines = sizes_of(capture, ledger), dict[int, str]()
    for group in by_line(capture, ledger):
        for line, entries in group.by_caller():
            lines.update((id(entry), file_line(line)) for entry in entries)
    before = defaultdict[tuple[int, int], int](int)
    used_before = defaultdict[tuple[int, int], int](int)
    rows = []
    for entry in ledger.graphs:
        graph = None if entry.graph is None else capture.graphs[entry.graph]
        if graph is None or graph.pool is None or entry.pool_bytes is None:
            continue
        place = entry.process, graph.pool
        grown, before[place] = entry.pool_bytes - before[place], entry.pool_bytes
        kept = None
        if (used := entry.pool_used_bytes) is not None:
            kept, used_before[place] = max(used - used_before[place], 0), used
        if not entry.holds_a_pool:
            rows.append(
                GraphMemoryRow(
                    entry.graph,
                    lines.get(id(entry), ""),
                    entry.key or sizes.get(entry.graph or 0, ""),
                    capture.memory.pools[graph.pool].name,
                    grown,
                    kept,
                    graph.exec_bytes,
                )
            )
    return tuple(rows)


def estimates(rows: Sequence[GraphMemoryRow]) -> tuple[str, ...]:
    """What one more size would add, for each line that captures several: between the graphs of two
    sizes, and how far off that is for each size that is left out."""
    by_size: dict[tuple[str, str], Counter[float]] = defaultdict(Counter)
    first: dict[str, tuple[str, str]] = {}
    for row in rows:
        # The first size of a pool brings what all share.
        is_first = first.setdefault(row.pool, (row.line, row.key)) == (row.line, row.key)
        if not is_first and (number := _NUMBER.search(row.key)):
            by_size[row.line, row.pool][float(number[0])] += row.total_bytes
    texts = []
    for (line, _), known in by_size.items():
        sizes = sorted(known)
        if len(sizes) < _FEWEST:
            continue
        errors = [
            abs(_between(known, low, high, size) - known[size])
            for low, size, high in zip(sizes, sizes[1:], sizes[2:], strict=False)
        ]
        added = [(known[low] + known[high]) // 2 for low, high in pairwise(sizes)]
        least, most = bytes_text(min(added)), bytes_text(max(added))
        texts.append(
            f"{line}: one more size between two of {len(sizes)} would add "
            f"{least if least == most else f'{least} to {most}'}; estimated so for each of them "
            f"without itself, off by {bytes_text(round(statistics.median(errors)))} in the median, "
            f"{bytes_text(max(errors))} at most"
        )
    return tuple(texts)


def _between(known: dict[float, int], low: float, high: float, size: float) -> float:
    share = (size - low) / (high - low)
    return known[low] + share * (known[high] - known[low])
