"""GPU time of every node, from PyTorch's profiler around a few replays.

The kernels of one graph launch share a correlation id in CUPTI's records, which separates a replay
from the fills that PyTorch runs before it. Records do not name a node, so nodes are matched by
order. The order is certain where the graph is one chain, or where all nodes of one kernel run one
after the other. Other nodes have no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec
import pycxxfilt
import torch

from cgtool.devices.cuda.nodes import TIMED
from cgtool.devices.cuda.session import CudaSession
from cgtool.devices.cuda.timing import busy
from cgtool.model.capture import Capture, Caveat, Graph, Node
from cgtool.torch_compat.private import DeviceType

REPLAYS = 5
_MOST_BRANCHED = 5_000
"""Larger graphs with branches are not matched: the time grows with the square."""


class Record(msgspec.Struct, frozen=True):
    """One kernel, copy or fill of a replay."""

    name: str
    start_ns: int
    duration_ns: int


Replays = list[list[Record]]
"""The records of each replay of one graph, in order of their start."""


def collect(session: CudaSession) -> list[Replays]:
    """Replay every graph a few times under the profiler, each after the graphs that were captured
    before it. Raises RuntimeError when another tool has subscribed to CUPTI."""
    return [
        [records for _ in range(REPLAYS) if (records := _replayed(session, number))]
        for number in range(len(session.captured))
    ]


def _replayed(session: CudaSession, number: int) -> list[Record]:
    """The records of one replay, in order of their start."""
    *before, one = session.captured[: number + 1]
    for earlier in before:
        earlier.graph.replay()
    session.device.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        busy()
        one.graph.replay()
        session.device.synchronize()
    launches: dict[int, list[Record]] = defaultdict(list)
    for event in profile.profiler.kineto_results.events():
        if event.device_type() == DeviceType.CUDA:
            launches[event.correlation_id()].append(
                Record(event.name(), event.start_ns(), event.duration_ns())
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
        float(max(record.start_ns + record.duration_ns for record in records) - records[0].start_ns)
        for records in replays
    ]


def add(capture: Capture, recorded: Sequence[Replays]) -> Capture:
    """The capture with a time on every node whose record is certain, and a caveat on the others."""
    names = [_bare(_demangled(function.name)) for function in capture.functions]
    graphs = [
        msgspec.structs.replace(graph, nodes=_timed(graph, replays, names))
        for graph, replays in zip(capture.graphs, recorded, strict=False)
    ]
    graphs += capture.graphs[len(graphs) :]
    without = sum(
        node.type in TIMED and node.duration_ns is None for graph in graphs for node in graph.nodes
    )
    caveats = capture.caveats
    if without:
        caveats = (
            *caveats,
            Caveat(
                "untimed",
                f"{without} nodes have no time: no record of the profiler matches them",
            ),
        )
    return msgspec.structs.replace(capture, graphs=tuple(graphs), caveats=caveats)


def _demangled(name: str) -> str:
    try:
        return str(pycxxfilt.demangle(name) or name)
    except ValueError:
        return name


def _bare(name: str) -> str:
    return name.replace(" ", "")


def _timed(graph: Graph, replays: Replays, names: Sequence[str]) -> tuple[Node, ...]:
    nodes = [node for node in graph.nodes if node.type in TIMED]
    whole = [records for records in replays if len(records) == len(nodes)]
    durations: dict[int, list[int]] = defaultdict(list)
    starts: dict[int, list[int]] = defaultdict(list)
    certain = _certain(graph, nodes)
    for records in whole:
        for node, record in _matched(nodes, records, certain, names):
            durations[node.id].append(record.duration_ns)
            starts[node.id].append(record.start_ns - records[0].start_ns)
    return tuple(
        msgspec.structs.replace(
            node,
            start_ns=round(median(starts[node.id])),
            duration_ns=round(median(durations[node.id])),
        )
        if node.id in durations
        else node
        for node in graph.nodes
    )


def _kind(node: Node) -> Any:
    return node.kernel.function if node.kernel is not None else node.type


def _is_chain(graph: Graph) -> bool:
    order = {(edge.source, edge.target) for edge in graph.edges}
    return all((node.id - 1, node.id) in order for node in graph.nodes[1:])


def _certain(graph: Graph, nodes: Sequence[Node]) -> set[Any] | None:
    """Kinds whose nodes run one after the other; None when all nodes do, in order."""
    if _is_chain(graph):
        return None
    if len(graph.nodes) > _MOST_BRANCHED:
        return set()
    before = _ancestors(graph)
    last: dict[Any, int] = {}
    ordered: dict[Any, bool] = {}
    for node in nodes:
        kind = _kind(node)
        if kind in last:
            ordered[kind] = ordered[kind] and bool(before[node.id] >> last[kind] & 1)
        else:
            ordered[kind] = True
        last[kind] = node.id
    return {kind for kind, one_by_one in ordered.items() if one_by_one}


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
    """(node, record) pairs; none where the order contradicts itself."""
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
    for kind, nodes_of_kind in by_kind.items():
        if kind in certain:
            name = functions[kind] if isinstance(kind, int) else kind
            partners = by_name.get(name, [])
            if len(partners) == len(nodes_of_kind):
                pairs += zip(nodes_of_kind, partners, strict=True)
    return pairs


def _class(name: str) -> str:
    """``memcpy``, ``memset``, or the kernel's name."""
    for kind in ("Memcpy", "Memset"):
        if name.startswith(kind):
            return kind.lower()
    return _bare(name)
