"""``cgtool capture`` on a GPU: warm up, capture, replay, and read the graphs as plain data."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec
import torch

import cgtool
from cgtool.detectors.capture_errors import explain
from cgtool.devices.cuda import node_times
from cgtool.devices.cuda.cupti import CuptiUnavailable
from cgtool.devices.cuda.driver import graph_nodes
from cgtool.devices.cuda.memory import (
    AddressBook,
    cublas_workspaces,
    freed_uses,
    require_live_inputs,
)
from cgtool.devices.cuda.nodes import (
    RAW_DOT_NODES,
    FunctionTable,
    GraphContents,
    GraphReader,
    debug_dot,
)
from cgtool.devices.cuda.provenance import Joined, join
from cgtool.devices.cuda.session import CudaSession
from cgtool.devices.device import CaptureWithDot, Device
from cgtool.model.capture import (
    Allocation,
    Capture,
    Caveat,
    Graph,
    Memory,
    Stream,
    Tensor,
    created_now,
)
from cgtool.model.failure import CgtoolError, user_code
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.access import AccessLog
from cgtool.observe.ops import numbered
from cgtool.observe.origins import OriginTable
from cgtool.program.boundary import first_line
from cgtool.program.description import (
    address_of,
    caveats_of,
    describe_tensor,
    entry_of,
    labels_of,
    modules_of,
    tensors_of,
)
from cgtool.program.workload import Workload
from cgtool.torch_compat.op_key import may_have_python_kernel

LAUNCHES = 20
"""How many launches of each graph are timed on the host."""


def capture(
    device: Device, workload: Workload, options: CaptureOptions, progress: Progress
) -> CaptureWithDot:
    """Capture a workload on a GPU: the capture, and the driver's DOT texts by part name.

    Raises CgtoolError when the user's code cannot be captured.
    """
    session = prepare(device, workload, options, progress, to_measure=options.times)
    progress("replay")
    time_launches(session)
    timed: node_times.NodeTimes | None = None
    if options.times:
        try:
            timed = node_times.record(session, progress)
        except CuptiUnavailable as error:
            session.caveats.append(Caveat("untimed", f"no node has a time: {error}"))
    progress("read nodes")
    captured, raw = assemble(session)
    if timed is not None:
        captured = timed.add(captured)
    if options.check_input_liveness:
        require_live_inputs(captured)
    return captured, raw


def open_session(device: Device, workload: Workload, options: CaptureOptions) -> CudaSession:
    """A session with its own stream."""
    torch.cuda.set_device(device.index)
    priority = {"normal": 0, "high": -1}[options.stream]
    stream = torch.cuda.Stream(device.index, priority=priority)
    return CudaSession(workload, options, device=device, stream=stream)


def prepare(
    device: Device,
    workload: Workload,
    options: CaptureOptions,
    progress: Progress,
    *,
    to_measure: bool = True,
) -> CudaSession:
    """Warm up, capture and instantiate: a session whose graphs can be replayed.

    Raises CgtoolError, also when there is nothing ``to_measure``.
    """
    session = open_session(device, workload, options)
    session.warm_up(progress)
    session.capture(progress)
    session.require_nodes(to_measure=to_measure)
    session.instantiate(progress)
    return session


def time_launches(session: CudaSession) -> None:
    """Fill ``launch_ns`` of each graph: host times of single replays on an idle device.

    Raises CgtoolError when a replay fails.
    """
    try:
        for _ in range(LAUNCHES):
            for graph in session.graphs:
                session.device.synchronize()
                clock = time.perf_counter_ns()
                graph.graph.replay()
                graph.launch_ns.append(time.perf_counter_ns() - clock)
        session.device.synchronize()
    except RuntimeError as error:
        raise _replay_failed(session, error) from error


def _replay_failed(session: CudaSession, error: RuntimeError) -> CgtoolError:
    """A replay ended with an error of the device: nothing can be read from it afterwards."""
    finding = explain(error, "replay")
    frame = session.workload.frame
    return user_code(
        f"{session.workload.spec}: the graphs were captured, but a replay failed: "
        f"{first_line(error)}",
        frames=(frame,) if frame is not None else (),
        why=finding.reason
        if finding
        else "the device does not report which node of the graph failed",
        fix=(finding.fix if finding else None)
        or "run `cgtool verify ENTRY`, which compares a replay with eager, op by op; an index that "
        "grows with every call, as that of a cache does, runs out of bounds after some replays",
        phase="replay",
        findings=(finding,) if finding else (),
    )


def assemble(session: CudaSession, *, replayable: bool = False) -> CaptureWithDot:
    """The capture as plain data, and the driver's DOT texts by part name.

    Nothing can be replayed afterwards, unless it is to stay ``replayable``: finding the cuBLAS
    workspaces frees them.
    """
    table = OriginTable(session.workload.frame)
    templates = [graph.template for graph in session.graphs]
    handles = [graph_nodes(int(template)) for template in templates]
    named = zip(session.graphs, handles, strict=True)
    empty = [graph.name for graph, nodes in named if not nodes]
    # Described before provenance is joined, which may run the workload again and replace tensors.
    modules, notes = modules_of(session.workload), caveats_of(session, empty)
    tensors, unnamed = tensors_of(session.workload, session.accesses.number_of, _on_gpu)
    tensors += _incoming_gradients(session)
    labels = labels_of(session, _on_gpu)
    joined = join(session, handles, table)
    workspaces = set() if replayable else cublas_workspaces(session.device.index, session.pools)
    allocations = _named_allocations(
        session, joined, dict.fromkeys(workspaces, "cuBLAS workspace") | labels
    )
    node_times_ns = [provenance.times_ns for provenance in joined]
    live_only = [_uses_live_only(session.accesses, provenance) for provenance in joined]
    addresses = AddressBook(session.trace, allocations, tensors, node_times_ns, live_only)
    reader = GraphReader(FunctionTable(), addresses)
    graphs: list[Graph] = []
    raw: dict[str, str] = {}
    contents: list[GraphContents] = []
    for index, (captured, template, provenance) in enumerate(
        zip(session.graphs, templates, joined, strict=True)
    ):
        calls, call_of = numbered(provenance.calls)
        known = list(zip(provenance.origins, call_of, provenance.streams, strict=True))
        read = reader.read(template, index)
        contents.append(read)
        dot = debug_dot(template) if len(known) <= RAW_DOT_NODES else None
        if dot is not None:
            raw[f"{index}.dot"] = dot
        graphs.append(
            Graph(
                name=captured.name,
                phase=captured.phase,
                callable=captured.callable,
                pool=list(session.pools).index(captured.pool),
                nodes=read.nodes(known),
                edges=read.edges,
                capture_ns=captured.capture_ns,
                instantiate_ns=captured.instantiate_ns,
                upload_ns=captured.upload_ns,
                launch_ns=tuple(captured.launch_ns),
                exec_bytes=captured.exec_bytes,
                raw_dot=None if dot is None else f"{index}.dot",
                eager_launches=provenance.eager_launches,
                calls=calls,
            )
        )
    for index, read in enumerate(contents):
        _add_bodies(reader, graphs, read, index)
    in_capture = any(graph.exact is not None for graph in session.graphs)
    capture = Capture(
        entry=entry_of(session.workload, session.options),
        environment=session.device.environment(),
        created=created_now(),
        cgtool=cgtool.__version__,
        graphs=tuple(graphs),
        frames=table.frames,
        origins=table.origins,
        argument_lists=session.accesses.argument_lists(),
        modules=modules,
        functions=tuple(reader.functions.functions),
        streams=tuple(
            Stream(handle, "capture stream" if index == 0 else f"stream {index}")
            for handle, index in session.streams.items()
        ),
        memory=Memory(
            pools=session.trace.pools, allocations=allocations, tensors=tuple(addresses.tensors)
        ),
        warmup_iters=session.warmup_iters,
        warmup_ns=session.warmup_ns,
        recorder="in-capture" if in_capture else "node-callbacks",
        caveats=(*session.caveats, *unnamed, *notes, *_caveats(session, joined)),
    )
    dead = sum(use.is_certain for use in freed_uses(capture))
    if dead:
        caveat = Caveat(
            "dead-input",
            f"{dead} nodes point into memory that was already freed when the capture ended: a "
            "replay reads whatever is stored there by then",
        )
        capture = msgspec.structs.replace(capture, caveats=(*capture.caveats, caveat))
    return capture, raw


def _add_bodies(
    reader: GraphReader, graphs: list[Graph], contents: GraphContents, index: int
) -> None:
    """Append the graphs inside child and conditional nodes, recursively, after all others."""
    each_child = ((node, child) for node, bodies in contents.children.items() for child in bodies)
    for node_id, child in each_child:
        body_index = len(graphs)
        inner = reader.read(child, body_index)
        owner = graphs[index]
        node = owner.nodes[node_id]
        number = f", body {len(node.body)}" if node.body else ""
        graphs.append(
            Graph(
                name=f"{owner.name}/node {node_id}{number}",
                phase=owner.phase,
                callable=owner.callable,
                pool=owner.pool,
                nodes=inner.nodes([(node.origin, None, node.stream)] * len(inner.fields)),
                edges=inner.edges,
                parent=(index, node_id),
            )
        )
        nodes = list(owner.nodes)
        nodes[node_id] = msgspec.structs.replace(node, body=(*node.body, body_index))
        graphs[index] = msgspec.structs.replace(owner, nodes=tuple(nodes))
        _add_bodies(reader, graphs, inner, body_index)


def _on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


def _incoming_gradients(session: CudaSession) -> Iterator[Tensor]:
    """The static incoming gradients that have memory."""
    for backward in session.backwards.values():
        for (name, _), tensor in zip(backward.outputs, backward.incoming, strict=True):
            if address_of(tensor) is not None:
                number = session.accesses.number_of(tensor)
                yield describe_tensor(f"incoming gradient of {name}", "gradient", tensor, number)


def _named_allocations(
    session: CudaSession, joined: Sequence[Joined], labels: dict[int, str]
) -> tuple[Allocation, ...]:
    """The allocations of the trace, each with the first node created after it and its origin. Those
    that are alive at the end get their label by address."""

    def named(allocation: Allocation) -> Allocation:
        provenance = joined[allocation.graph]
        time_ns = session.trace.event_times_ns[allocation.allocated_at]
        node: int | None = bisect_left(provenance.times_ns, time_ns)
        if node == len(provenance.origins) or time_ns > session.graphs[allocation.graph].end_ns:
            node = None
        return msgspec.structs.replace(
            allocation,
            node=node,
            origin=None if node is None else provenance.origins[node],
            label=labels.get(allocation.address) if allocation.freed_at is None else None,
        )

    return tuple(map(named, session.trace.allocations))


def _uses_live_only(accesses: AccessLog, provenance: Joined) -> set[int]:
    """The nodes of ops whose tensors are all known, and none of them was freed since."""
    return {
        node
        for node, call in enumerate(provenance.calls)
        if call is not None
        and not may_have_python_kernel(call.name)
        and call.access is not None
        and call.access.writes
        and not accesses.used_freed(call.access)
    }


def _caveats(session: CudaSession, joined: Sequence[Joined]) -> list[Caveat]:
    graphs = list(zip(session.graphs, joined, strict=True))
    caveats: list[Caveat] = []
    unmatched = sum(len(known.unmatched) for graph, known in graphs if graph.exact is None)
    if unmatched:
        caveats.append(
            Caveat(
                "ops-unmatched",
                f"{unmatched} nodes match no launch of the recorded warm-up: their line is known, "
                "their op is not. The captured iteration ran different code than the warm-up.",
            )
        )
    between = sum(len(known.unmatched) for graph, known in graphs if graph.exact is not None)
    if between:
        caveats.append(
            Caveat(
                "place-unknown",
                f"{between} nodes were launched between two ops (Triton, a custom extension): "
                "a recorder inside the capture does not see their line, module and stream",
            )
        )
    if any(graph.exact is not None for graph in session.graphs):
        why = session.problem or "there was no warm-up iteration to record"
        caveats.append(
            Caveat(
                "recorded-in-capture",
                f"ops were recorded during the capture, which slows it down ({why})",
            )
        )
    if session.trace.problem:
        caveats.append(Caveat("no-allocator-trace", session.trace.problem))
    return caveats
