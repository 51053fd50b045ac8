"""How near each node comes to the limits of the device, and what limits a graph.

The roofs are the bytes a second of a large copy and the operations a second of a large matmul,
measured on the device at hand (Williams, Waterman and Patterson, Roofline, CACM 2009). Bytes are
those of the tensors that an op read and wrote, each once, and operations those of PyTorch's flop
counter; an op of several kernels shares both over them by time. A node is near a roof from 60% on,
where Nsight Compute's Speed of Light section, too, ceases to call a kernel latency-bound.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

import msgspec

from cgtool.analysis.timing.gaps import Timeline
from cgtool.analysis.units import time_text
from cgtool.model.capture import Capture, Graph, Node
from cgtool.model.measurements import Profile

NEAR = 0.6
"""Share of a roof from which a node is near it."""
_MANY_GAPS = 0.1
"""Share of a replay in gaps from which it is mentioned."""
_CACHED = 1.15
"""Share of the memory roof past which bytes cannot have come from memory. An H200's data sheet says
4.8 TB/s and a large copy reaches 4.3: a kernel that only reads may lie between the two."""
MEMORY, COMPUTE, LATENCY, CACHE, HOST, LAUNCH = (
    "memory", "compute", "latency", "cache", "host link", "launch",
)  # fmt: skip
MEANS = {
    MEMORY: "reaches 60% or more of peak memory bandwidth",
    COMPUTE: "reaches 60% or more of peak FLOP/s for its dtype",
    LATENCY: "reaches neither: too few blocks to fill the GPU, or steps that wait for each other",
    CACHE: (
        "moves more bytes per second than memory delivers: they came from cache, or the op "
        "touched only part of its tensors"
    ),
    HOST: "copies between host and device",
}
THREADS_PER_WARP = 32
_TF32 = tuple(map(re.compile, ("tf32", "s1688", "tensorop_s(?!imt)")))
"""In the lower-case names of the kernels that multiply float32 on tensor cores: cuBLAS's and
CUTLASS's. One pattern for all would take 50 times as long."""


class Utilization(msgspec.Struct, frozen=True, gc=False):
    """One node. A share of a roof above 1 is not an error: see ``MEANS``."""

    bytes: float | None = None
    flops: float | None = None
    memory: float | None = None
    """Its bytes per second, as a share of the roof."""
    compute: float | None = None
    """Its operations per second, as a share of the roof of its dtype."""
    waves: float | None = None
    """Its blocks over those that the device holds at once: below 1 the device is not full."""
    bound: str | None = None
    """``memory``, ``compute``, ``latency``, ``cache``, ``host link``; None: cannot tell."""


class GraphBound(msgspec.Struct, frozen=True):
    """The limit of a graph's speed."""

    graph: int
    kind: str | None
    """``launch``, or the bound with the most of the time; None: cannot tell."""
    sentence: str
    shares: dict[str, float]
    """Shares of the replay by bound, with ``gaps`` (no node ran) and ``unknown``."""
    at_roofs_ns: float | None
    """Time of a replay whose known nodes run at their roofs; the others count in full."""
    filled: float | None
    """Mean share of the device's room for blocks that is taken while a kernel runs."""


def utilizations(capture: Capture, graph: Graph) -> list[Utilization]:
    """By node id: what it moves and computes, and how close it comes to the roofs.

    Where no kernel of an op was timed, all have equal parts of its work.
    """
    spent: dict[int, int] = defaultdict(int)
    kernels: Counter[int] = Counter()
    for node in graph.nodes:
        if node.call is not None and node.kernel is not None:
            spent[node.call] += node.duration_ns or 0
            kernels[node.call] += 1
    profile = capture.profile or Profile("")
    peaks = {peak.dtype: peak.flops_per_s for peak in profile.peaks}
    roof = profile.memory_bytes_per_s
    used = {node.kernel.function for node in graph.nodes if node.kernel is not None}
    tensor_cores = {at: _on_tensor_cores(capture.functions[at].name) for at in used}

    def utilization(node: Node) -> Utilization:
        duration = node.duration_ns or 0
        if node.copy is not None and node.copy.kind != "dtod":
            return Utilization(float(node.copy.bytes), bound=HOST if duration else None)
        moved, flops, peak = None, None, None
        if node.copy is not None:
            moved = 2.0 * node.copy.bytes
        elif node.fill is not None:
            moved = float(node.fill.bytes)
        elif node.kernel is not None and node.call is not None and node.call < len(graph.calls):
            call = graph.calls[node.call]
            total = spent[node.call]
            part = duration / total if total else 1 / kernels[node.call]
            moved = (call.read_bytes + call.written_bytes) * part or None
            flops = call.flops * part if call.flops else None
            is_tf32 = call.dtype == "float32" and tensor_cores[node.kernel.function]
            peak = peaks.get("tf32" if is_tf32 else call.dtype or "")
        if not duration:
            return Utilization(moved, flops, waves=waves(capture, node))
        seconds = duration / 1e9
        memory = moved / seconds / roof if moved is not None and roof else None
        compute = flops / seconds / peak if flops is not None and peak else None
        bound = _bound(memory, compute)
        if bound == LATENCY and flops is not None and compute is None:
            # Its compute roof was not measured, so it may be at that roof.
            bound = None
        return Utilization(moved, flops, memory, compute, waves(capture, node), bound)

    return [utilization(node) for node in graph.nodes]


def _on_tensor_cores(kernel: str) -> bool:
    name = kernel.lower()
    return any(pattern.search(name) for pattern in _TF32)


def waves(capture: Capture, node: Node) -> float | None:
    """Blocks of a kernel over those that the device holds at once; None if that is not known."""
    kernel, count = node.kernel, capture.environment.multiprocessors
    if kernel is None or not kernel.active_blocks or not count:
        return None
    return math.prod(kernel.grid) / (count * kernel.active_blocks)


def occupancy(capture: Capture, node: Node) -> float | None:
    """Threads of a kernel that a multiprocessor runs at once over those that it can hold: CUDA's
    theoretical occupancy, which counts whole warps. None if that is not known."""
    kernel, room = node.kernel, capture.environment.max_threads_per_multiprocessor
    if kernel is None or not kernel.active_blocks or not room:
        return None
    warps = -(-math.prod(kernel.block) // THREADS_PER_WARP)
    return kernel.active_blocks * warps * THREADS_PER_WARP / room


def _bound(memory: float | None, compute: float | None) -> str | None:
    if compute is not None and compute >= NEAR and compute >= (memory or 0.0):
        return COMPUTE
    if memory is None:
        return None
    if memory > _CACHED:
        return CACHE
    return MEMORY if memory >= NEAR else LATENCY


def judge(capture: Capture, line: Timeline, used: Sequence[Utilization]) -> GraphBound:
    """One graph as a whole; ``used`` is by node id."""
    graph = capture.graphs[line.graph]
    total = line.total_ns or 1.0
    times: Counter[str] = Counter()
    at_roofs = filled = sized = 0.0
    known = False
    for node, utilization in zip(graph.nodes, used, strict=True):
        duration = node.duration_ns or 0
        times[utilization.bound or "unknown"] += duration
        best = max(utilization.memory or 0.0, utilization.compute or 0.0)
        known |= utilization.bound is not None
        at_roofs += duration * min(1.0, best) if utilization.bound not in (None, HOST) else duration
        if utilization.waves is not None:
            filled += duration * min(1.0, utilization.waves)
            sized += duration
    # Where nodes ran at the same time the sum of their times is more than the replay.
    crowd = max(1.0, line.work_ns / line.busy_ns) if line.busy_ns else 1.0
    shares = {name: time / crowd / total for name, time in times.most_common() if time}
    if line.idle_ns:
        shares["gaps"] = line.idle_ns / total
    fills = filled / sized if sized else None
    kind, sentence = _sentence(capture, line, shares, fills)
    if known and kind not in (None, LAUNCH) and line.at_once <= 1:
        sentence += (
            f", and at peak bandwidth and FLOP/s its {time_text(line.total_ns)} would take "
            f"{time_text(at_roofs)}"
        )
    return GraphBound(line.graph, kind, f"{sentence}.", shares, at_roofs if known else None, fills)


def _sentence(
    capture: Capture, line: Timeline, shares: dict[str, float], filled: float | None
) -> tuple[str | None, str]:
    """The limit of a graph (None: cannot tell), and the sentence about it without its last dot."""
    graph = capture.graphs[line.graph]
    name = f"{line.name[:1].upper()}{line.name[1:]}"
    total = time_text(line.total_ns)
    launch = median(graph.launch_ns) if graph.launch_ns else None
    if launch is not None and line.replay_ns is not None and launch > line.replay_ns:
        return LAUNCH, (
            f"{name} is launch-bound: the host takes {time_text(launch)} to launch "
            f"{time_text(line.replay_ns)} of GPU work"
        )
    gaps, unknown = shares.get("gaps", 0.0), shares.get("unknown", 0.0)
    groups = {
        LATENCY: shares.get(LATENCY, 0.0) + gaps,
        **{bound: shares.get(bound, 0.0) for bound in (MEMORY, COMPUTE, CACHE, HOST)},
    }
    kind = max(groups, key=lambda bound: groups[bound])
    if unknown > groups[kind]:
        return None, (
            f"{name}: cannot tell what limits it, because the bytes and FLOPs of {unknown:.0%} of "
            f"its {total} are unknown"
        )
    if kind == LATENCY:
        facts = [] if filled is None else [f"kernels fill {filled:.0%} of the GPU"]
        if gaps >= _MANY_GAPS or not facts:
            facts.append(f"gaps between nodes take {gaps:.0%} of the replay")
        return kind, f"{name} is latency-bound: {', '.join(facts)}"
    reason = {
        MEMORY: "in nodes near peak memory bandwidth",
        COMPUTE: "in nodes near peak FLOP/s",
        CACHE: "in nodes that move bytes faster than memory can",
        HOST: "in copies between host and device",
    }[kind]
    word = "bound by the host link" if kind == HOST else f"{kind}-bound"
    return kind, f"{name} is {word}: {groups[kind]:.0%} of its time is {reason}"
