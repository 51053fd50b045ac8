"""``cgtool profile`` on a GPU: capture, time every node, and time the cost around a replay.

The peak rates that nodes are compared with are measured on the device, not looked up: clocks, power
limits and partitions differ from those of a data sheet (Williams, Waterman and Patterson, Roofline,
CACM 2009).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

import msgspec
import torch

from cgtool.detectors.capture_errors import explain
from cgtool.devices.cuda import bench, node_times
from cgtool.devices.cuda.capture import assemble, prepare, time_launches
from cgtool.devices.cuda.cupti import CuptiBusy, CuptiUnavailable
from cgtool.devices.cuda.driver import DriverError, check, cu, graph_nodes
from cgtool.devices.cuda.event_times import device_ns, empty_ns, once_ns
from cgtool.devices.cuda.node_times import INSTALL
from cgtool.devices.cuda.nodes import type_of
from cgtool.devices.cuda.session import CudaPhaseGraph, CudaSession
from cgtool.devices.device import CaptureWithDot, Device
from cgtool.model.failure import machine
from cgtool.model.measurements import GraphTimes, InputCopy, Peak, Profile
from cgtool.model.options import BenchOptions, CaptureOptions, ProfileOptions, Progress
from cgtool.program.boundary import user_errors
from cgtool.program.workload import Workload, tensors_in

_COPY_BYTES = 1 << 30
_MATMUL = 8192
_MEASURED = ("float64", "float32", "bfloat16", "float16")
_ROOM = 4
"""At most 1/4 of the free memory is used."""
_QUEUED = 50
"""Replays back to back, without synchronization."""
_LOOPS = 5
"""How often they are timed."""
_ONE_EXEC = frozenset(("alloc", "free", "conditional"))
"""Node types of graphs that can be instantiated only once."""


def run(
    device: Device,
    workload: Workload,
    options: CaptureOptions,
    profile_options: ProfileOptions,
    progress: Progress,
) -> CaptureWithDot:
    """Capture, measure, and return the capture with times on its nodes.

    Raises CgtoolError: exit 3 when no profiler can record on this machine.
    """
    session = prepare(device, workload, options, progress)
    started = time.perf_counter()
    with user_errors(workload.parts[0], "profile", explain):
        progress("first replay")
        first = [_first_ns(session, graph) for graph in session.graphs]
        time_launches(session)
        compared = bench.measure(
            session,
            bench.sides_of(session),
            BenchOptions(rounds=profile_options.rounds, max_seconds=profile_options.max_seconds),
            progress,
        )
        progress("time replays")
        graphs = list(_times(session, first, profile_options.replays))
        progress("time copies of inputs")
        inputs = tuple(_inputs(session))
        try:
            timed = node_times.record(session, progress, profile_options.replays)
        except CuptiUnavailable as error:
            raise machine(
                "the nodes of a replay cannot be timed on this machine",
                why=str(error),
                fix="run without the other profiler (ncu, nsys, or one that the code starts)"
                if isinstance(error, CuptiBusy)
                else INSTALL,
            ) from error
    progress("read nodes")
    capture, raw = assemble(session)
    capture = timed.add(capture)
    progress("measure the peak rates of this device")
    dtypes = {call.dtype for graph in capture.graphs for call in graph.calls if call.dtype}
    profile = Profile(
        route=timed.route,
        graphs=tuple(
            msgspec.structs.replace(graph, traced_ns=spans)
            for graph, spans in zip(graphs, timed.spans_ns(), strict=True)
        ),
        around_ns=node_times.around_ns(profile_options.replays)
        if timed.route == node_times.CUPTI
        else None,
        memory_bytes_per_s=memory_roof(),
        peaks=compute_roofs(dtypes or {"float32"}),
        inputs=inputs,
        seconds=time.perf_counter() - started,
    )
    return msgspec.structs.replace(capture, bench=compared, profile=profile), raw


def _first_ns(session: CudaSession, graph: CudaPhaseGraph) -> float | None:
    """Wall time of the first launch of a new executable graph, including synchronization, in ns;
    None for a graph that cannot be instantiated twice."""
    template = graph.template
    if any(type_of(node) in _ONE_EXEC for node in graph_nodes(int(template))):
        return None
    stream = cu.CUstream(session.stream.cuda_stream)
    try:
        fresh = check("cuGraphInstantiate", cu.cuGraphInstantiate(template, 0))
    except DriverError:
        return None
    try:
        session.device.synchronize()
        clock = time.perf_counter_ns()
        check("cuGraphLaunch", cu.cuGraphLaunch(fresh, stream))
        session.device.synchronize()
        return float(time.perf_counter_ns() - clock)
    except DriverError:
        return None
    finally:
        check("cuGraphExecDestroy", cu.cuGraphExecDestroy(fresh))


def _times(
    session: CudaSession, first_ns: Sequence[float | None], replays: int
) -> Iterator[GraphTimes]:
    """Times of each graph without a profiler.

    Graphs are always replayed in the order of capture: the nodes of a backward overwrite what it
    reads, and only another forward writes that again.
    """
    count = len(session.graphs)
    alone: list[list[float]] = [[] for _ in range(count)]
    synced: list[list[float]] = [[] for _ in range(count)]
    with torch.cuda.stream(session.stream):
        empty = empty_ns(replays)
        for _ in range(replays):
            for number, graph in enumerate(session.graphs):
                alone[number].append(once_ns(graph.graph.replay, graph.typical_launch_ns))
        for _ in range(replays):
            for number, graph in enumerate(session.graphs):
                clock = time.perf_counter_ns()
                graph.graph.replay()
                session.device.synchronize()
                synced[number].append(float(time.perf_counter_ns() - clock))

        def replay_all() -> None:
            for graph in session.graphs:
                graph.graph.replay()

        side = bench.Side("replay", "all", replay_all)
        bench.choose_iterations(side, session.device.index, 0.0, fewest=_QUEUED)
        for _ in range(_LOOPS):
            side.measure(session.device.index)
        queued = median(side.device_ns)
    typical = [median(times_ns) for times_ns in alone]
    for number in range(count):
        yield GraphTimes(
            graph=number,
            replay_ns=tuple(alone[number]),
            empty_ns=tuple(empty),
            first_ns=first_ns[number],
            synced_ns=tuple(synced[number]),
            queued_ns=queued * typical[number] / sum(typical),
        )


def _inputs(session: CudaSession) -> Iterator[InputCopy]:
    """The time to copy a new value into each static input."""
    for part in session.workload.parts:
        prefix = f"{part.name}." if len(session.workload.parts) > 1 else ""
        for name, tensor in tensors_in((part.args, dict(part.kwargs))):
            if tensor.is_cuda and tensor.layout == torch.strided and tensor.numel():
                copy = _input(session, f"{prefix}input{name}", tensor)
                if copy is not None:
                    yield copy


def _input(session: CudaSession, name: str, tensor: torch.Tensor) -> InputCopy | None:
    """None for a tensor that cannot be copied into, such as an expanded one."""
    target = tensor.detach()
    with torch.cuda.stream(session.stream):
        try:
            same = target.clone()
            on_device = median(device_ns(lambda: target.copy_(same)))
        except RuntimeError:
            return None
        try:
            pinned = same.cpu().pin_memory()
            from_host = median(device_ns(lambda: target.copy_(pinned, non_blocking=True)))
        except RuntimeError:
            # No pinned memory is left, or the host does not support the dtype.
            from_host = None
        rows, padding = _padding(same)
    return InputCopy(name, target.nbytes, on_device, from_host, rows=rows, padding_rows=padding)


def _padding(tensor: torch.Tensor) -> tuple[int | None, int | None]:
    """(rows, trailing rows that all hold one value). A tensor that holds one value everywhere does
    not count as padded."""
    if tensor.dim() < 2 or tensor.shape[0] < 2 or tensor.is_complex():
        return None, None
    rows = tensor.shape[0]
    flat = tensor.reshape(rows, -1)
    if flat.shape[1] < 2:
        return rows, None
    constant = (flat == flat[-1, -1]).all(dim=1).flip(0)
    count = int(constant.to(torch.int64).cumprod(0).sum())
    return rows, None if count == rows else count or None


def memory_roof() -> float | None:
    """Bytes per second of a copy inside device memory, reads plus writes; None when too little
    memory is free."""
    free, _ = torch.cuda.mem_get_info()
    size = min(_COPY_BYTES, free // _ROOM // 2)
    if size < 1 << 26:
        return None
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / median(device_ns(lambda: target.copy_(source))) * 1e9


def compute_roofs(dtypes: Iterable[str]) -> tuple[Peak, ...]:
    """FLOP/s of a large matmul, for each dtype of ``dtypes`` that is in ``_MEASURED``.

    float32 is measured without tensor cores, ``tf32`` with them. Changes the process's precision of
    float32 matmuls.
    """
    wanted = [name for name in _MEASURED if name in set(dtypes)]
    if "float32" in wanted and torch.cuda.get_device_capability() >= (8, 0):
        wanted.append("tf32")
    rates = ((name, _matmul(name)) for name in wanted)
    return tuple(Peak(name, rate) for name, rate in rates if rate is not None)


def _matmul(name: str) -> float | None:
    dtype: torch.dtype = getattr(torch, "float32" if name == "tf32" else name)
    free, _ = torch.cuda.mem_get_info()
    size = _MATMUL
    while 3 * dtype.itemsize * size * size > free // _ROOM:
        size //= 2
        if size < 1024:
            return None
    # Not restored: reading it raises where the user's code has set fp32_precision, and no user code
    # runs after this.
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    left = torch.randn(size, size, device="cuda").to(dtype)
    right, out = left.t().contiguous(), torch.empty_like(left)
    spent = median(device_ns(lambda: torch.mm(left, right, out=out)))
    return 2 * size**3 / spent * 1e9
