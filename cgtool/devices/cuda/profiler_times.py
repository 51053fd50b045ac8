"""GPU time of every node, from PyTorch's profiler around a few replays.

The kernels of one graph launch share a correlation id in CUPTI's records, which separates a replay
from the fills that PyTorch runs before it. Records of older releases do not name a node;
``cgtool.analysis.trace_match`` finds it where the order of the nodes is certain. Other nodes have
no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import torch

from cgtool.analysis.trace_match import Matcher
from cgtool.devices.cuda.event_times import busy
from cgtool.devices.cuda.session import CudaSession
from cgtool.model.capture import Capture
from cgtool.model.gpu_trace import Record
from cgtool.torch_compat.private import DeviceType

REPLAYS = 5


class Span(msgspec.Struct, frozen=True):
    """One node in one replay, in nanoseconds from the start of the first record."""

    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


Replays = list[list[Record]]
"""The records of each replay of one graph, in order of their start."""


def collect(session: CudaSession) -> list[Replays]:
    """Replay every graph a few times under the profiler, each after the graphs that were captured
    before it. Raises RuntimeError when another tool has subscribed to CUPTI."""
    return [
        [records for _ in range(REPLAYS) if (records := _replayed(session, number))]
        for number in range(len(session.graphs))
    ]


def _replayed(session: CudaSession, number: int) -> list[Record]:
    *before, graph = session.graphs[: number + 1]
    for earlier in before:
        earlier.graph.replay()
    session.device.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        busy(graph.typical_launch_ns)
        graph.graph.replay()
        session.device.synchronize()
    launches: dict[int, list[Record]] = defaultdict(list)
    for event in profile.profiler.kineto_results.events():
        if event.device_type() == DeviceType.CUDA:
            launch, start = event.correlation_id(), event.start_ns()
            end = start + event.duration_ns()
            record = Record(0, _type(event.name()), event.name(), start, end, (0, launch))
            launches[launch].append(record)
    # The kernel that keeps the device busy and the fills of seed and offset are launches of one
    # record each, before the replay.
    last = max(
        launches.values(), key=lambda records: (len(records), records[0].start_ns), default=[]
    )
    return sorted(last, key=lambda record: record.start_ns)


def lengths(replays: Replays) -> list[float]:
    """First start to last end of each replay, in nanoseconds."""
    return [
        float(max(record.end_ns for record in records) - records[0].start_ns) for records in replays
    ]


def spans_of(capture: Capture, recorded: Sequence[Replays]) -> list[list[dict[int, Span]]]:
    """By graph and replay: the span of each node whose record is certain."""
    matcher = Matcher(capture)
    return [
        [_spans(matcher, graph, records) for records in replays]
        for graph, replays in enumerate(recorded)
    ]


def _spans(matcher: Matcher, graph: int, records: Sequence[Record]) -> dict[int, Span]:
    first = records[0].start_ns
    matches = matcher.fit(records, (graph,)).matches
    return {
        each.targets[0][1]: Span(record.start_ns - first, record.end_ns - record.start_ns)
        for record, each in zip(records, matches, strict=True)
        if len(each.targets) == 1
    }


def _type(name: str) -> str:
    """The type of node for the name of a record."""
    return next(
        (type_ for type_ in ("memcpy", "memset") if name.startswith(type_.title())), "kernel"
    )
