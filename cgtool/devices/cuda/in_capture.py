"""The recorder inside the capture: for when CUPTI cannot be had, or no warm-up was recorded.

It counts the graph's nodes around each op and notes the time and the stream, so that a node's
place, lifetimes and stream are those of the op that made it. It slows the capture down, and of a
node that was launched between two ops (Triton, a custom extension) it knows only when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from cgtool.devices.cuda.driver import capturing_graph, check, cu
from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.ops import OpCall, OpRecorder


class Ran(NamedTuple):
    """When and where an op ran."""

    start_ns: int
    """Of the system clock, as the allocator's trace."""
    end_ns: int
    stream: int
    """Handle of the stream that was current."""


def _node_counter(stream: int) -> Callable[[], int]:
    """How many nodes the graph that ``stream`` is captured into has."""

    def count() -> int:
        graph = capturing_graph(stream)
        if graph is None:
            return 0
        _, number = check("cuGraphGetNodes", cu.cuGraphGetNodes(graph, 0))
        return int(number)

    return count


class InCaptureRecorder(OpRecorder):
    """Each call has its nodes as ``launches`` and a ``Ran`` as ``extra``."""

    def __init__(
        self,
        roots: Mapping[str, torch.nn.Module],
        annotations: Annotations,
        device: int,
        stream: int,
        accesses: AccessLog | None = None,
    ) -> None:
        """``stream`` is the handle of the capturing stream."""
        super().__init__(roots, annotations, _node_counter(stream), accesses)
        self._device = device

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        start = time.time_ns()
        try:
            return super().execute(call, func, args, kwargs)
        finally:
            call.extra = Ran(start, time.time_ns(), stream)


def makers(calls: Sequence[OpCall], count: int) -> list[OpCall | None]:
    """The innermost op that made each of ``count`` nodes; None for those between two ops."""
    found: list[OpCall | None] = [None] * count
    for call in calls:
        for node in range(call.launches[0], min(call.launches[1], count)):
            # Ops nest: the innermost comes last in the record and wins.
            found[node] = call
    return found


def times_ns(calls: Sequence[OpCall], made_by: Sequence[OpCall | None], end_ns: int) -> list[int]:
    """A time for each node, in order of creation: not before the allocations of its op, and not
    after those of the next."""
    # Nodes between two ops were there when the next op began.
    bounds: dict[int, int] = {}
    for call in calls:
        bounds.setdefault(call.launches[0], call.extra.start_ns)
    times = [0] * len(made_by)
    latest = end_ns
    for node in range(len(made_by) - 1, -1, -1):
        latest = min(latest, bounds.get(node + 1, latest))
        call_of = made_by[node]
        if call_of is not None:
            latest = min(latest, call_of.extra.end_ns)
        times[node] = latest
    return times
