"""Whether a capture holds together: every index points at something, every number is one that a
machine could have given. Checked after reading, so that nothing further on has to."""

from __future__ import annotations

from collections.abc import Iterable

from cgtool.model.capture import Capture, Graph, Memory, Node
from cgtool.model.order import topological

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
    given = [value for value in values if value is not None]
    if given:
        for value in (min(given), max(given)):
            if not 0 <= value < size:
                raise _Unsound(f"{where}: {what} {_short(value)} of {size}")


def _number(
    where: str, what: str, values: Iterable[int | None], bound: int = MAX_NUMBER, least: int = 0
) -> None:
    given = [value for value in values if value is not None]
    if given:
        for value in (min(given), max(given)):
            if not least <= value < bound:
                raise _Unsound(f"{where}: {what} {_short(value)}")


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
    _number("frames", "line", (frame.line for frame in capture.frames))
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
    if [node.id for node in nodes] != list(range(len(nodes))):
        raise _Unsound(f"{where}: its nodes are not numbered from 0 in order")
    _index(where, "origin", (node.origin for node in nodes), len(capture.origins))
    _index(where, "origin", graph.eager_only, len(capture.origins))
    _number(where, "eager launches", (graph.eager_launches,))
    _index(where, "stream", (node.stream for node in nodes), len(capture.streams))
    _number(where, "call", (node.call for node in nodes))
    _number(where, "duration", (node.duration_ns for node in nodes))
    _number(where, "start", (node.start_ns for node in nodes))
    if graph.calls:
        _index(where, "call", (node.call for node in nodes), len(graph.calls))
    for call in graph.calls:
        numbers = (*call.reads, *call.writes, call.read_bytes, call.written_bytes)
        _number(where, "storage or its bytes", numbers)
        _number(where, "floating-point operations", (call.flops,))
    _kernels(where, nodes, capture)
    _ends(where, nodes, memory)
    edges = graph.edges
    _index(where, "edge from node", (edge.source for edge in edges), len(nodes))
    _index(where, "edge to node", (edge.target for edge in edges), len(nodes))
    _number(where, "edge port", (edge.from_port for edge in edges), 256)
    _number(where, "edge port", (edge.to_port for edge in edges), 256)
    _number(where, "edge type", (edge.type for edge in edges), 256)
    if topological(len(nodes), edges) is None:
        raise _Unsound(f"{where}: its edges make a cycle")
    _index(where, "pool", (graph.pool,), len(memory.pools))
    times = (graph.capture_ns, graph.instantiate_ns, graph.upload_ns, *graph.launch_ns)
    _number(where, "time", times)
    _number(where, "callable", (graph.callable,))
    _number(where, "executable's bytes", (graph.exec_bytes,))


def _kernels(where: str, nodes: tuple[Node, ...], capture: Capture) -> None:
    kernels = [node.kernel for node in nodes if node.kernel is not None]
    _index(where, "function", (kernel.function for kernel in kernels), len(capture.functions))
    for sizes in {kernel.grid for kernel in kernels} | {kernel.block for kernel in kernels}:
        _number(where, "grid or block", sizes, 1 << 32)
    _number(where, "shared bytes", (kernel.dynamic_shared_bytes for kernel in kernels))
    _number(where, "active blocks", (kernel.active_blocks for kernel in kernels))
    pointers = [pointer for kernel in kernels for pointer in kernel.pointers]
    memory = capture.memory
    _index(where, "allocation", (one.allocation for one in pointers), len(memory.allocations))
    _index(where, "tensor", (one.tensor for one in pointers), len(memory.tensors))
    _number(where, "argument", (one.parameter for one in pointers))
    _number(where, "argument offset", (one.offset for one in pointers))
    _number(where, "address", (one.address for one in pointers), MAX_ADDRESS)


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
    _index(where, "pool", (one.pool for one in allocations), len(memory.pools))
    _index(where, "graph", (one.graph for one in allocations), len(capture.graphs))
    _index(where, "origin", (one.origin for one in allocations), len(capture.origins))
    _index(where, "stream", (one.stream for one in allocations), len(capture.streams))
    _number(where, "address", (one.address for one in allocations), MAX_ADDRESS)
    _number(where, "bytes", (one.bytes for one in allocations))
    _number(where, "requested bytes", (one.requested_bytes for one in allocations))
    for graph, node in {(one.graph, one.node) for one in allocations if one.node is not None}:
        _index(where, "node", (node,), len(capture.graphs[graph].nodes))
    for number, one in enumerate(allocations):
        if one.allocated_at < 0 or (
            one.freed_at is not None and not one.allocated_at <= one.freed_at < MAX_NUMBER
        ):
            raise _Unsound(f"allocation {number}: freed before it was made")
    _number(where, "event", (one.allocated_at for one in allocations))
    for pool in memory.pools:
        _number(where, "pool id", pool.id, least=-MAX_NUMBER)
        for segment in pool.segments:
            _index(where, "stream", (segment.stream,), len(capture.streams))
            _number(where, "segment address", (segment.address,), MAX_ADDRESS)
            _number(where, "segment bytes", (segment.bytes,))
            _number(where, "block address", (one.address for one in segment.blocks), MAX_ADDRESS)
            _number(where, "block bytes", (one.bytes for one in segment.blocks))
            _number(where, "block bytes", (one.requested_bytes for one in segment.blocks))
    for tensor in memory.tensors:
        _number(where, "tensor address", (tensor.address,), MAX_ADDRESS)
        _number(where, "tensor bytes", (tensor.bytes, *tensor.shape))


def _bench(capture: Capture) -> None:
    if capture.bench is None:
        return
    _number("bench", "seed", (capture.bench.seed,), least=-MAX_NUMBER, bound=MAX_ADDRESS)
    _number("bench", "iterations", (one.iterations for one in capture.bench.samples), least=1)
    _number("bench", "pairs", (one.pairs for one in capture.bench.samples), least=1)
    _number("bench", "captures", (one.captures for one in capture.bench.samples), least=1)
    _number("bench", "run", (one.run for one in capture.bench.samples))
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
    _index("profile", "graph", (one.graph for one in profile.graphs), len(capture.graphs))
    for times in profile.graphs:
        several = (*times.replay_ns, *times.empty_ns, *times.traced_ns, *times.synced_ns)
        _measure("profile", "a time", (*several, times.first_ns, times.queued_ns))
    for one in profile.inputs:
        _number("profile", "bytes or rows", (one.bytes, one.rows, one.padding_rows))
        _measure("profile", "a copy's time", (one.copy_ns, one.host_copy_ns))
    roofs = (profile.memory_bytes_per_s, *(one.flops_per_s for one in profile.peaks))
    _measure("profile", "a roof", roofs, least=1.0)
