"""Whether a capture holds together: every index points at something, every number is one that a
machine could have given. Checked after reading, so that nothing further on has to."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from cgtool.model.capture import Capture, Graph, Memory, Node, topological

MAX_NUMBER = 1 << 63
MAX_ADDRESS = 1 << 64
MAX_NESTING = 64
MAX_MEASURE = 1e21
"""Nanoseconds, bytes or operations a second: more than any device has."""


class _Unsound(Exception):
    """Says what does not hold."""


def inconsistency(capture: Capture) -> str | None:
    """The first thing that does not hold, in words; None for a sound capture."""
    try:
        _tables(capture)
        for graph in capture.graphs:
            _graph(capture, graph)
        _nesting(capture)
        _memory(capture)
        _bench(capture)
        _profile(capture)
    except _Unsound as unsound:
        return str(unsound)
    return None


def _index(where: str, what: str, values: Iterable[int | None], size: int) -> None:
    given = _given(values)
    if given:
        for value in (min(given), max(given)):
            if not 0 <= value < size:
                raise _Unsound(f"{where}: {what} {_short(value)} of {size}")


def _number(
    where: str, what: str, values: Iterable[int | None], bound: int = MAX_NUMBER, least: int = 0
) -> None:
    given = _given(values)
    if given:
        for value in (min(given), max(given)):
            if not least <= value < bound:
                raise _Unsound(f"{where}: {what} {_short(value)}")


def _given(values: Iterable[int | None]) -> list[int]:
    # By way of a set: of many nodes, most say the same.
    return [value for value in set(values) if value is not None]


def _measure(where: str, what: str, values: Iterable[float | None], least: float = 0.0) -> None:
    for value in values:
        # Neither is true of a NaN.
        if value is not None and not least <= value <= MAX_MEASURE:
            raise _Unsound(f"{where}: {what} {value:g}")


def _short(value: int) -> str:
    # Python refuses to print integers of thousands of digits.
    return str(value) if abs(value) < 1 << 70 else "beyond all bounds"


def _tables(capture: Capture) -> None:
    for number, origin in enumerate(capture.origins):
        where = f"origin {number}"
        _index(where, "frame", origin.frames, len(capture.frames))
        # A forward origin is interned before the backward one that names it: no cycles.
        _index(where, "forward origin", (origin.forward,), number)
    _number("frames", "line", map(attrgetter("line"), capture.frames))
    for function in capture.functions:
        numbers = (
            function.registers,
            function.static_shared_bytes,
            function.local_bytes,
            function.max_threads_per_block,
            function.binary_version,
            *function.parameter_bytes,
        )
        _number("functions", "a number", numbers)
    for stream in capture.streams:
        _number("streams", "handle", (stream.handle,), MAX_ADDRESS)
        _number("streams", "priority", (stream.priority,), least=-MAX_NUMBER)
    environment = capture.environment
    _number(
        "environment",
        "a number",
        (
            environment.multiprocessors,
            environment.max_threads_per_multiprocessor,
            environment.device_bytes,
            *(environment.compute_capability or ()),
        ),
    )
    _number("manifest", "a number", (capture.warmup_iters, capture.warmup_ns, capture.entry.line))


def _graph(capture: Capture, graph: Graph) -> None:
    where, nodes, memory = graph.name, graph.nodes, capture.memory
    if list(map(attrgetter("id"), nodes)) != list(range(len(nodes))):
        raise _Unsound(f"{where}: its nodes are not numbered from 0 in order")
    _index(where, "origin", map(attrgetter("origin"), nodes), len(capture.origins))
    _index(where, "origin", graph.eager_only, len(capture.origins))
    _number(where, "eager launches", (graph.eager_launches,))
    _index(where, "stream", map(attrgetter("stream"), nodes), len(capture.streams))
    _number(where, "duration", map(attrgetter("duration_ns"), nodes))
    _number(where, "start", map(attrgetter("start_ns"), nodes))
    if graph.calls:
        _index(where, "call", map(attrgetter("call"), nodes), len(graph.calls))
    else:
        _number(where, "call", map(attrgetter("call"), nodes))
    for call in graph.calls:
        numbers = (*call.reads, *call.writes, call.read_bytes, call.written_bytes)
        _number(where, "storage or its bytes", numbers)
        _number(where, "floating-point operations", (call.flops,))
    _kernels(where, nodes, capture)
    _ends(where, nodes, memory)
    edges = graph.edges
    _index(where, "edge from node", map(attrgetter("source"), edges), len(nodes))
    _index(where, "edge to node", map(attrgetter("target"), edges), len(nodes))
    _number(where, "edge port", map(attrgetter("from_port"), edges), 256)
    _number(where, "edge port", map(attrgetter("to_port"), edges), 256)
    _number(where, "edge type", map(attrgetter("type"), edges), 256)
    if topological(len(nodes), edges) is None:
        raise _Unsound(f"{where}: its edges make a cycle")
    _index(where, "pool", (graph.pool,), len(memory.pools))
    times = (graph.capture_ns, graph.instantiate_ns, graph.upload_ns, *graph.launch_ns)
    _number(where, "time", times)
    _number(where, "callable", (graph.callable,))
    _number(where, "executable's bytes", (graph.exec_bytes,))


def _kernels(where: str, nodes: tuple[Node, ...], capture: Capture) -> None:
    kernels = [node.kernel for node in nodes if node.kernel is not None]
    _index(where, "function", map(attrgetter("function"), kernels), len(capture.functions))
    for sizes in {kernel.grid for kernel in kernels} | {kernel.block for kernel in kernels}:
        _number(where, "grid or block", sizes, 1 << 32)
    _number(where, "shared bytes", map(attrgetter("dynamic_shared_bytes"), kernels))
    _number(where, "active blocks", map(attrgetter("active_blocks"), kernels))
    pointers = [pointer for kernel in kernels for pointer in kernel.pointers]
    memory = capture.memory
    _index(where, "allocation", map(attrgetter("allocation"), pointers), len(memory.allocations))
    _index(where, "tensor", map(attrgetter("tensor"), pointers), len(memory.tensors))
    _number(where, "argument", map(attrgetter("parameter"), pointers))
    _number(where, "argument offset", map(attrgetter("offset"), pointers))
    _number(where, "address", map(attrgetter("address"), pointers), MAX_ADDRESS)


def _ends(where: str, nodes: tuple[Node, ...], memory: Memory) -> None:
    for node in nodes:
        copy, fill = node.copy, node.fill
        if copy is not None:
            at = f"{where}: node {node.id}"
            allocations = (copy.source_allocation, copy.destination_allocation)
            _index(at, "allocation", allocations, len(memory.allocations))
            tensors = (copy.source_tensor, copy.destination_tensor)
            _index(at, "tensor", tensors, len(memory.tensors))
            _number(at, "bytes", (copy.bytes,))
            _number(at, "address", (copy.source, copy.destination), MAX_ADDRESS)
        if fill is not None:
            at = f"{where}: node {node.id}"
            _index(at, "allocation", (fill.destination_allocation,), len(memory.allocations))
            _index(at, "tensor", (fill.destination_tensor,), len(memory.tensors))
            _number(at, "bytes", (fill.bytes,))
            _number(at, "address", (fill.destination,), MAX_ADDRESS)
            _number(at, "value", (fill.value,), least=-MAX_NUMBER)


def _nesting(capture: Capture) -> None:
    """Bodies come after their owner, belong to one node, and are not nested without end."""
    count = len(capture.graphs)
    owner: dict[int, tuple[int, int]] = {}
    depth = [0] * count
    for index, graph in enumerate(capture.graphs):
        for node in graph.nodes:
            for body in node.body:
                if not index < body < count:
                    raise _Unsound(f"{graph.name}: node {node.id}: body {_short(body)} of {count}")
                if body in owner:
                    raise _Unsound(f"{graph.name}: node {node.id}: body {body} has another owner")
                owner[body] = (index, node.id)
                depth[body] = depth[index] + 1
                if depth[body] > MAX_NESTING:
                    raise _Unsound(f"{graph.name}: bodies inside bodies, {MAX_NESTING} deep")
    for index, graph in enumerate(capture.graphs):
        if graph.parent != owner.get(index):
            raise _Unsound(f"{graph.name}: its parent is not the node that runs it")


def _memory(capture: Capture) -> None:
    memory, where = capture.memory, "memory"
    allocations = memory.allocations
    _index(where, "pool", map(attrgetter("pool"), allocations), len(memory.pools))
    _index(where, "graph", map(attrgetter("graph"), allocations), len(capture.graphs))
    _index(where, "origin", map(attrgetter("origin"), allocations), len(capture.origins))
    _index(where, "stream", map(attrgetter("stream"), allocations), len(capture.streams))
    _number(where, "address", map(attrgetter("address"), allocations), MAX_ADDRESS)
    _number(where, "bytes", map(attrgetter("bytes"), allocations))
    _number(where, "requested bytes", map(attrgetter("requested_bytes"), allocations))
    for graph, node in {(one.graph, one.node) for one in allocations if one.node is not None}:
        _index(where, "node", (node,), len(capture.graphs[graph].nodes))
    for number, one in enumerate(allocations):
        if one.allocated_at < 0 or (
            one.freed_at is not None and not one.allocated_at <= one.freed_at < MAX_NUMBER
        ):
            raise _Unsound(f"allocation {number}: freed before it was made")
    _number(where, "event", map(attrgetter("allocated_at"), allocations))
    for pool in memory.pools:
        _number(where, "pool id", pool.id, least=-MAX_NUMBER)
        for segment in pool.segments:
            _index(where, "stream", (segment.stream,), len(capture.streams))
            _number(where, "segment address", (segment.address,), MAX_ADDRESS)
            _number(where, "segment bytes", (segment.bytes,))
            _number(where, "block address", map(attrgetter("address"), segment.blocks), MAX_ADDRESS)
            _number(where, "block bytes", map(attrgetter("bytes"), segment.blocks))
            _number(where, "block bytes", map(attrgetter("requested_bytes"), segment.blocks))
    for tensor in memory.tensors:
        _number(where, "tensor address", (tensor.address,), MAX_ADDRESS)
        _number(where, "tensor bytes", (tensor.bytes, *tensor.shape))


def _bench(capture: Capture) -> None:
    if capture.bench is None:
        return
    _number("bench", "seed", (capture.bench.seed,), least=-MAX_NUMBER, bound=MAX_ADDRESS)
    _number("bench", "iterations", map(attrgetter("iterations"), capture.bench.samples), least=1)
    _number("bench", "pairs", map(attrgetter("pairs"), capture.bench.samples), least=1)
    _number("bench", "captures", map(attrgetter("captures"), capture.bench.samples), least=1)
    _number("bench", "run", map(attrgetter("run"), capture.bench.samples))
    for sample in capture.bench.samples:
        _measure("bench", "a time", (*sample.device_ns, *sample.host_ns))
    _measure("bench", "grain", (capture.bench.timer_grain_ns,))
    clock = capture.bench.clock
    if clock is not None:
        numbers = (*clock.sm_mhz, *clock.memory_mhz, *clock.temperature_c)
        _number("bench", "clock", numbers, least=-MAX_NUMBER)
        _number("bench", "other processes", (clock.other_processes,))


def _profile(capture: Capture) -> None:
    profile = capture.profile
    if profile is None:
        return
    _index("profile", "graph", map(attrgetter("graph"), profile.graphs), len(capture.graphs))
    for times in profile.graphs:
        several = (*times.replay_ns, *times.empty_ns, *times.traced_ns, *times.synced_ns)
        _measure("profile", "a time", (*several, times.first_ns, times.queued_ns))
    for one in profile.inputs:
        _number("profile", "bytes or rows", (one.bytes, one.rows, one.padding_rows))
        _measure("profile", "a copy's time", (one.copy_ns, one.host_copy_ns))
    roofs = (profile.memory_bytes_per_s, *map(attrgetter("flops_per_s"), profile.peaks))
    _measure("profile", "a roof", roofs, least=1.0)
