"""GPU time of every node, from PyTorch's profiler around a few replays.

The kernels of one graph launch share a correlation id in CUPTI's records, which separates a replay
from the fills that PyTorch runs before it. Records do not name a node, so nodes are matched by
order. The order is certain where the graph is one chain, or where all nodes of one kernel run one
after the other. Other nodes have no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from cgtool.analysis.graph.kernel_names import demangle
from cgtool.devices.cuda.event_times import busy
from cgtool.devices.cuda.nodes import TIMED
from cgtool.devices.cuda.session import CudaSession
from cgtool.model.capture import Capture, Graph, Node
from cgtool.torch_compat.private import DeviceType

REPLAYS = 5
_MOST_BRANCHED = 5_000
"""Larger graphs with branches are not matched: the time grows with the square."""


class Span(msgspec.Struct, frozen=True):
    """One node in one replay, in nanoseconds from the start of the first record."""

    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


class Record(Span, frozen=True):
    """One kernel, copy or fill of a replay; its start is on the profiler's clock."""

    name: str


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
            launches[event.correlation_id()].append(
                Record(event.start_ns(), event.duration_ns(), event.name())
            )
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
    functions = [_bare(demangle(function.name)) for function in capture.functions]
    return [
        _spans(graph, replays, functions)
        for graph, replays in zip(capture.graphs, recorded, strict=False)
    ]


def _spans(graph: Graph, replays: Replays, functions: Sequence[str]) -> list[dict[int, Span]]:
    nodes = [node for node in graph.nodes if node.type in TIMED]
    certain = _certain(graph, nodes)
    return [
        {
            node.id: Span(record.start_ns - records[0].start_ns, record.duration_ns)
            for node, record in _matched(nodes, records, certain, functions)
        }
        for records in replays
        if len(records) == len(nodes)
    ]


def _bare(name: str) -> str:
    return name.replace(" ", "")


def _kind(node: Node) -> Any:
    return node.kernel.function if node.kernel is not None else node.type


def _certain(graph: Graph, nodes: Sequence[Node]) -> set[Any] | None:
    """Kinds whose nodes run one after the other; None when all nodes do, in order."""
    order = {(edge.source, edge.target) for edge in graph.edges}
    if all((node.id - 1, node.id) in order for node in graph.nodes[1:]):
        return None
    if len(graph.nodes) > _MOST_BRANCHED:
        return set()
    before = _ancestors(graph)
    last: dict[Any, int] = {}
    branched: set[Any] = set()
    for node in nodes:
        kind = _kind(node)
        if kind in last and not before[node.id] >> last[kind] & 1:
            branched.add(kind)
        last[kind] = node.id
    return set(last) - branched


def _ancestors(graph: Graph) -> list[int]:
    """By node: a bit for each node that comes before it."""
    sources: dict[int, list[int]] = defaultdict(list)
    for edge in graph.edges:
        sources[edge.target].append(edge.source)
    before: list[int] = []
    for node in graph.nodes:
        bits = 0
        for source in sources[node.id]:
            # Nodes are numbered in the order of creation: an edge leads to a later one.
            bits |= 1 << source | (before[source] if source < len(before) else 0)
        before.append(bits)
    return before


def _matched(
    nodes: Sequence[Node],
    records: Sequence[Record],
    certain: set[Any] | None,
    functions: Sequence[str],
) -> list[tuple[Node, Record]]:
    """(node, record) pairs; none if the order contradicts itself."""
    if certain is None:
        names: dict[Any, str] = {}
        for node, record in zip(nodes, records, strict=True):
            if names.setdefault(_kind(node), record.name) != record.name and node.kernel:
                # One function with two names: the records are in another order.
                return []
        return list(zip(nodes, records, strict=True))
    by_kind: dict[Any, list[Node]] = defaultdict(list)
    by_name: dict[str, list[Record]] = defaultdict(list)
    for node in nodes:
        by_kind[_kind(node)].append(node)
    for record in records:
        by_name[_class(record.name)].append(record)
    pairs: list[tuple[Node, Record]] = []
    for kind in certain:
        partners = by_name[functions[kind] if isinstance(kind, int) else kind]
        if len(partners) == len(by_kind[kind]):
            pairs += zip(by_kind[kind], partners, strict=True)
    return pairs


def _class(name: str) -> str:
    """``memcpy``, ``memset``, or the kernel's name."""
    for kind in ("Memcpy", "Memset"):
        if name.startswith(kind):
            return kind.lower()
    return _bare(name)
