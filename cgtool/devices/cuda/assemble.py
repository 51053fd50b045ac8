"""From live graphs to plain data: read the nodes, join their provenance, label the memory."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import torch

import cgtool
from cgtool.devices.cuda import memory
from cgtool.devices.cuda.addresses import FREED, AddressBook
from cgtool.devices.cuda.driver import cu
from cgtool.devices.cuda.nodes import FunctionTable, GraphContents, GraphReader, debug_dot, nodes_of
from cgtool.devices.cuda.provenance import Joined, join
from cgtool.devices.cuda.session import CudaSession
from cgtool.model.capture import Allocation, Capture, Caveat, Graph, Memory, Stream, Tensor
from cgtool.observe.ops import numbered
from cgtool.observe.origins import OriginTable
from cgtool.program.phases import caveats_of, labels_of
from cgtool.program.workload import address_of, describe_tensor, describe_tensors, entry_of

RAW_DOT_NODES = 20_000
"""The driver's DOT text of a larger graph would take over a hundred megabytes."""


def _bodies(reader: GraphReader, graphs: list[Graph], contents: GraphContents, index: int) -> None:
    """Append the graphs inside child nodes, recursively, after the captured graphs."""
    for node_id, child in contents.children.items():
        body_index = len(graphs)
        inner = reader.read(child, body_index)
        owner = graphs[index]
        node = owner.nodes[node_id]
        nodes = [
            msgspec.structs.replace(body_node, origin=node.origin, stream=node.stream)
            for body_node in inner.nodes
        ]
        graphs.append(
            Graph(
                name=f"{owner.name}/node {node_id}",
                phase=owner.phase,
                callable=owner.callable,
                pool=owner.pool,
                nodes=tuple(nodes),
                edges=inner.edges,
                parent=(index, node_id),
            )
        )
        changed = list(owner.nodes)
        changed[node_id] = msgspec.structs.replace(node, body=(body_index,))
        graphs[index] = msgspec.structs.replace(owner, nodes=tuple(changed))
        _bodies(reader, graphs, inner, body_index)


def assemble(
    session: CudaSession,
    *,
    warmup_iters: int,
    launch_ns: Sequence[tuple[int, ...]],
    caveats: list[Caveat],
) -> tuple[Capture, dict[str, str]]:
    """The capture as plain data, and the driver's DOT texts by part name.

    Nothing can be replayed afterwards: finding the cuBLAS workspaces frees them.
    """
    table = OriginTable(session.workload.entry_frame())
    templates = [cu.CUgraph(graph.graph.raw_cuda_graph()) for graph in session.captured]
    # Labelled before provenance is joined, which may run the workload again and replace tensors.
    tensors, unnamed = named_tensors(session)
    names = labels(session)
    handles = [[int(node) for node in nodes_of(template)] for template in templates]
    joined = join(session, handles, table)
    workspaces = memory.cublas_workspaces(session.device.index, session.pool_ids)
    names = dict.fromkeys(workspaces, "cuBLAS workspace") | names
    allocations = named_allocations(session, joined, names)
    addresses = AddressBook(
        allocations,
        tensors,
        session.trace.others,
        {
            index: memory.moments(session.trace, provenance.times_ns)
            for index, provenance in enumerate(joined)
        },
    )
    reader = GraphReader(FunctionTable(), addresses)
    graphs: list[Graph] = []
    raw: dict[str, str] = {}
    contents: list[GraphContents] = []
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        for index, (captured, template, provenance) in enumerate(
            zip(session.captured, templates, joined, strict=True)
        ):
            calls, call_of = numbered(provenance.calls)
            known = list(zip(provenance.origins, call_of, provenance.streams, strict=True))
            read = reader.read(template, index, known)
            contents.append(read)
            part = None
            if len(read.nodes) <= RAW_DOT_NODES:
                text = debug_dot(template, str(Path(folder) / f"{index}.dot"))
                if text is not None:
                    part = f"{index}.dot"
                    raw[part] = text
            graphs.append(
                Graph(
                    name=captured.name,
                    phase=captured.phase,
                    callable=captured.callable,
                    pool=captured.pool_index,
                    nodes=tuple(read.nodes),
                    edges=read.edges,
                    capture_ns=captured.capture_ns,
                    instantiate_ns=captured.instantiate_ns,
                    upload_ns=captured.upload_ns,
                    launch_ns=tuple(launch_ns[index]) if index < len(launch_ns) else (),
                    exec_bytes=captured.exec_bytes,
                    raw_dot=part,
                    eager_launches=provenance.eager_launches,
                    calls=calls,
                    eager_only=provenance.eager_only,
                )
            )
    for index, read in enumerate(contents):
        _bodies(reader, graphs, read, index)
    caveats = caveats + unnamed + _caveats(session, joined, addresses)
    capture = Capture(
        entry=entry_of(session.workload, session.options),
        environment=session.device.environment(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        cgtool=cgtool.__version__,
        graphs=tuple(graphs),
        frames=table.frames,
        origins=table.origins,
        functions=tuple(reader.functions.functions),
        streams=tuple(
            Stream(handle, "capture stream" if index == 0 else f"stream {index}")
            for handle, index in session.streams.items()
        ),
        memory=Memory(
            pools=session.trace.pools,
            allocations=allocations,
            tensors=tuple(addresses.tensors),
        ),
        warmup_iters=warmup_iters,
        warmup_ns=session.warmup_ns,
        recorder="in-capture"
        if any(graph.exact is not None for graph in session.captured)
        else "node-callbacks",
        caveats=tuple(caveats),
    )
    return capture, raw


def _caveats(
    session: CudaSession, joined: Sequence[Joined], addresses: AddressBook
) -> list[Caveat]:
    empty = [
        graph.name
        for graph, provenance in zip(session.captured, joined, strict=True)
        if not provenance.origins
    ]
    caveats = caveats_of(session, empty)
    unmatched = between = 0
    for captured, provenance in zip(session.captured, joined, strict=True):
        if captured.exact is None:
            unmatched += len(provenance.unmatched)
        else:
            between += len(provenance.unmatched)
    if unmatched:
        caveats.append(
            Caveat(
                "ops-unmatched",
                f"{unmatched} nodes match no launch of the recorded warm-up: their line is known, "
                "their op is not. The captured iteration ran different code than the warm-up.",
            )
        )
    if between:
        caveats.append(
            Caveat(
                "place-unknown",
                f"{between} nodes were launched between two ops (Triton, a custom extension): "
                "a recorder inside the capture does not see their line, module and stream",
            )
        )
    if any(graph.exact is not None for graph in session.captured):
        why = session.problem or "there was no warm-up iteration to record"
        caveats.append(
            Caveat(
                "recorded-in-capture",
                f"ops were recorded during the capture, which slows it down ({why})",
            )
        )
    dead = sum(tensor.kind == FREED for tensor in addresses.tensors)
    if dead:
        caveats.append(
            Caveat(
                "dead-input",
                f"nodes point into {dead} blocks that were already freed when the capture ended: "
                "a replay reads whatever is stored there by then",
            )
        )
    if session.trace.problem:
        caveats.append(Caveat("no-allocator-trace", session.trace.problem))
    return caveats


def _on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


def named_tensors(session: CudaSession) -> tuple[list[Tensor], list[Caveat]]:
    """The workload's own memory on the GPU, then the static incoming gradients; and caveats on
    memory that has no name."""
    tensors, caveats = describe_tensors(session.workload, _on_gpu)
    for index, incoming in session.incoming.items():
        for (name, _), tensor in zip(session.surfaces[index].outputs, incoming, strict=True):
            if address_of(tensor) is not None:
                label = f"incoming gradient of {name}"
                tensors.append(describe_tensor(label, "gradient", tensor))
    return tensors, caveats


def labels(session: CudaSession) -> dict[int, str]:
    """Address to the name of the output or gradient at it."""
    return labels_of(session, _on_gpu)


def named_allocations(
    session: CudaSession, joined: Sequence[Joined], names: dict[int, str]
) -> tuple[Allocation, ...]:
    """The allocations of the trace, each with its node and its origin. Those that are alive at the
    end get their label from ``names``, by address."""
    owner: dict[int, tuple[int, int | None]] = {}
    for index, (graph, provenance) in enumerate(zip(session.captured, joined, strict=True)):
        nodes = memory.owners(session.trace, index, provenance.times_ns, graph.window.end_ns)
        for position, node in nodes.items():
            owner[position] = (node, provenance.origins[node])
    result: list[Allocation] = []
    for index, allocation in enumerate(session.trace.allocations):
        place, origin = owner.get(index, (None, None))
        label = names.get(allocation.address) if allocation.freed_at is None else None
        result.append(msgspec.structs.replace(allocation, node=place, origin=origin, label=label))
    return tuple(result)
