"""What it costs in memory to run side by side what runs in turn."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from cgtool.analysis.graph.schedule import Schedule
from cgtool.model.capture import Capture, Graph


@dataclass(slots=True)
class _Use:
    """When the nodes of a graph use one allocation, by the schedule of what the data needs."""

    first: int
    """Earliest start of any of them."""
    end: int
    """Earliest moment at which all have ended."""
    latest_first: int
    latest_end: int

    def over_before(self, other: _Use) -> bool:
        """As ``Schedule.ordered``, for all of these nodes before all of those."""
        return self.end <= other.first and self.latest_end <= other.latest_first


def more_bytes(capture: Capture, graph: Graph, free: Schedule) -> int:
    """Bytes that are given to a second tensor while the nodes of the first could still run: so much
    more memory would the pool need, at most, to let them. 0 where kernels' arguments are not known.
    """
    uses = _uses(graph, free)
    allocations = capture.memory.allocations
    # Ranges of memory: sorted starts, and by start the end and what last used it.
    starts: list[int] = []
    ranges: dict[int, tuple[int, _Use]] = {}
    more = 0
    for index in sorted(uses, key=lambda one: allocations[one].allocated_at):
        use, low = uses[index], allocations[index].address
        high = low + allocations[index].bytes
        same = ranges.get(low)
        if same is not None and same[0] == high:
            # Most blocks are given out again as they are.
            more += 0 if same[1].over_before(use) else high - low
            ranges[low] = high, use
            continue
        at = end = max(0, bisect_right(starts, low) - 1)
        left = [(low, high, use)]
        while end < len(starts) and starts[end] < high:
            start = starts[end]
            stop, earlier = ranges.pop(start)
            shared = min(stop, high) - max(start, low)
            if shared > 0 and not earlier.over_before(use):
                more += shared
            if start < low:
                left.append((start, min(stop, low), earlier))
            if stop > high:
                left.append((high, stop, earlier))
            end += 1
        left.sort(key=lambda one: one[0])
        starts[at:end] = [start for start, _, _ in left]
        ranges.update((start, (stop, owner)) for start, stop, owner in left)
    return more


def _uses(graph: Graph, free: Schedule) -> dict[int, _Use]:
    found: dict[int, _Use] = {}
    for node in graph.nodes:
        start, end, slack = free.start[node.id], free.end[node.id], free.slack[node.id]
        for pointer in node.kernel.pointers if node.kernel is not None else ():
            if pointer.allocation is None:
                continue
            use = found.get(pointer.allocation)
            if use is None:
                found[pointer.allocation] = _Use(start, end, start + slack, end + slack)
                continue
            if start < use.first:
                use.first = start
            if end > use.end:
                use.end = end
            if start + slack < use.latest_first:
                use.latest_first = start + slack
            if end + slack > use.latest_end:
                use.latest_end = end + slack
    return found
