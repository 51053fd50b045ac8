"""From live graphs to plain data: read the nodes, join their provenance, name the memory."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import cgtool
from cgtool.cuda import environment, memory
from cgtool.cuda.addresses import AddressBook
from cgtool.cuda.capturing import Captured, Session, capture_all, node_count
from cgtool.cuda.driver import check, cu
from cgtool.cuda.functions import FunctionTable
from cgtool.cuda.nodes import GraphContents, GraphReader, debug_dot
from cgtool.cuda.stamps import Stamp, align, place_stamps
from cgtool.entry.surface import named_tensors
from cgtool.model.capture import (
    Allocation,
    Capture,
    Caveat,
    Entry,
    Graph,
    Memory,
    Option,
    Stream,
    Tensor,
)
from cgtool.model.failure import CgtoolError
from cgtool.record.annotations import watch
from cgtool.record.origins import OriginTable

RAW_DOT_NODES = 20_000
"""Past this, the driver's DOT text alone would be over a hundred megabytes."""


class Joined(msgspec.Struct):
    """What is known of each node, in creation order."""

    origins: list[int | None]
    calls: list[int | None]
    streams: list[int]
    times_ns: list[int]
    unmatched: list[int]
    """Nodes whose op is not known."""


def _join_stamps(session: Session, one: Captured, handles: list[int], table: OriginTable) -> Joined:
    stamps = place_stamps(handles, one.stamps)
    present = [stamp for stamp in stamps if stamp is not None]
    recorded = one.recorded
    launches = recorded.launches if recorded is not None else []
    partners = iter(align(launches, present))
    origins: list[int | None] = []
    calls: list[int | None] = []
    unmatched: list[int] = []
    for node, stamp in enumerate(stamps):
        if stamp is None:
            unmatched.append(node)
            origins.append(None)
            calls.append(None)
            continue
        index = next(partners)
        if index is None or recorded is None:
            unmatched.append(node)
            origins.append(_stamp_origin(stamp, table))
            calls.append(None)
            continue
        launch = launches[index]
        if launch.call is not None:
            origins.append(table.add(launch.call, recorded.record))
            calls.append(launch.call.index)
            continue
        forward_call = recorded.record.maker_of(launch.autograd_sequence)
        module = launch.module or (forward_call.module if forward_call else None)
        origins.append(
            table.add_site(
                op=None,
                chain=launch.chain,
                module=module,
                annotations=launch.annotations,
                autograd_node=launch.autograd_node,
                forward=table.add(forward_call, recorded.record) if forward_call else None,
            )
        )
        calls.append(None)
    last = one.window.start_ns
    times = []
    for stamp in stamps:
        last = stamp.time_ns if stamp is not None else last
        times.append(last)
    streams = [session.streams.get(stamp.stream, 0) if stamp else 0 for stamp in stamps]
    return Joined(origins, calls, streams, times, unmatched)


def _stamp_origin(stamp: Stamp, table: OriginTable) -> int:
    return table.add_site(
        op=None,
        chain=(stamp.user,) if stamp.user is not None else (),
        module=None,
        annotations=stamp.annotations,
        autograd_node=stamp.autograd_node,
    )


def _join_exact(one: Captured, count: int, table: OriginTable) -> Joined:
    """Provenance from the recorder that ran during the capture itself."""
    assert one.exact is not None
    record = one.exact.record
    origins: list[int | None] = [None] * count
    calls: list[int | None] = [None] * count
    for call in record.calls[one.exact_from : one.exact_until]:
        for node in range(call.launches[0], min(call.launches[1], count)):
            # Ops nest: the innermost comes last in the record and wins.
            origins[node] = table.add(call, record)
            calls[node] = call.index
    unmatched: list[int] = []
    nearest: int | None = None
    for node in range(count):
        if origins[node] is None:
            # Launched between two ops: it shares the place of the op before it.
            unmatched.append(node)
            origins[node] = nearest
        else:
            nearest = origins[node]
    middle = (one.window.start_ns + one.window.end_ns) // 2
    return Joined(origins, calls, [0] * count, [middle] * count, unmatched)


def _look_again(session: Session, joined: Sequence[Joined], table: OriginTable) -> None:
    """Name the ops that ran only while capturing: capture once more, with the recorder inside.

    The second capture is thrown away. It answers for a node only where it has as many nodes and
    the same line; what it cannot answer stays open.
    """
    again = Session(session.workload, session.options, session.device, session.stream)
    try:
        with watch() as ranges:
            capture_all(again, [], ranges, lambda _text: None)
    except (CgtoolError, RuntimeError):
        return
    for provenance, second in zip(joined, again.captured, strict=False):
        count = len(provenance.origins)
        if not provenance.unmatched or node_count(second) != count:
            continue
        exact = _join_exact(second, count, table)
        origins = table.origins
        still: list[int] = []
        for node in provenance.unmatched:
            mine, theirs = provenance.origins[node], exact.origins[node]
            if (
                mine is None
                or theirs is None
                or exact.calls[node] is None
                or origins[mine].frames[:1] != origins[theirs].frames[:1]
            ):
                still.append(node)
                continue
            provenance.origins[node] = theirs
            provenance.calls[node] = exact.calls[node]
        provenance.unmatched = still


def _tensors(session: Session) -> list[Tensor]:
    found: list[Tensor] = []
    seen: set[tuple[int, int]] = set()
    for name, kind, tensor in named_tensors(session.workload):
        if tensor.device.type != "cuda" or tensor.data_ptr() == 0:
            continue
        size = int(tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize)
        key = (tensor.data_ptr(), size)
        if key in seen:
            continue
        seen.add(key)
        found.append(
            Tensor(
                name,
                kind,
                tensor.data_ptr(),
                size,
                tuple(tensor.shape),
                str(tensor.dtype).removeprefix("torch."),
            )
        )
    for index, incoming in session.incoming.items():
        for (name, _), tensor in zip(session.surfaces[index].outputs, incoming, strict=True):
            found.append(
                Tensor(
                    f"incoming gradient of {name}",
                    "gradient",
                    tensor.data_ptr(),
                    tensor.nbytes,
                    tuple(tensor.shape),
                    str(tensor.dtype).removeprefix("torch."),
                )
            )
    return found


def _labels(session: Session, workspaces: set[int]) -> dict[int, str]:
    """Address to the name of what holds a block at the end."""
    labels = dict.fromkeys(workspaces, "cuBLAS workspace")
    several = len(session.workload.parts) > 1
    for index, outputs in session.outputs.items():
        where = f"{session.workload.parts[index].name}: " if several else ""
        for name, tensor in outputs:
            if tensor.device.type == "cuda":
                labels[tensor.untyped_storage().data_ptr()] = f"{where}{name}"
    for index, gradients in session.gradients.items():
        where = f"{session.workload.parts[index].name}: " if several else ""
        for (name, _), gradient in zip(session.surfaces[index].inputs, gradients, strict=True):
            if gradient is not None:
                address = gradient.untyped_storage().data_ptr()
                labels[address] = f"{where}gradient of {name}"
    for name, kind, tensor in named_tensors(session.workload):
        if kind == "gradient":
            labels.setdefault(tensor.untyped_storage().data_ptr(), name)
    return labels


def _allocations(
    session: Session, joined: Sequence[Joined], labels: dict[int, str]
) -> tuple[Allocation, ...]:
    owner: dict[int, tuple[int, int | None]] = {}
    for index, (one, provenance) in enumerate(zip(session.captured, joined, strict=True)):
        nodes = memory.owners(session.trace, index, provenance.times_ns, one.window.end_ns)
        for position, node in nodes.items():
            owner[position] = (node, provenance.origins[node])
    result: list[Allocation] = []
    unowned: tuple[int | None, int | None] = (None, None)
    for index, allocation in enumerate(session.trace.allocations):
        place, origin = owner.get(index, unowned)
        label = labels.get(allocation.address) if allocation.freed_at is None else None
        result.append(msgspec.structs.replace(allocation, node=place, origin=origin, label=label))
    return tuple(result)


def _bodies(reader: GraphReader, graphs: list[Graph], contents: GraphContents, index: int) -> None:
    """Append the graphs inside child nodes, and theirs, after the graphs captured so far."""
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
    session: Session,
    *,
    warmup_iters: int,
    launch_ns: Sequence[tuple[int, ...]],
    caveats: list[Caveat],
) -> tuple[Capture, dict[str, str]]:
    """The capture as plain data, and the driver's DOT texts by part name.

    Comes last: naming the cuBLAS workspaces frees them.
    """
    table = OriginTable(session.workload.entry_frame())
    templates = [cu.CUgraph(one.graph.raw_cuda_graph()) for one in session.captured]
    joined: list[Joined] = []
    for one, template in zip(session.captured, templates, strict=True):
        _, count = check("cuGraphGetNodes", cu.cuGraphGetNodes(template, 0))
        handles, count = check("cuGraphGetNodes", cu.cuGraphGetNodes(template, count))
        numbers = [int(handle) for handle in handles[:count]]
        joined.append(
            _join_exact(one, count, table)
            if one.exact is not None
            else _join_stamps(session, one, numbers, table)
        )
    if any(
        provenance.unmatched and one.exact is None
        for one, provenance in zip(session.captured, joined, strict=True)
    ):
        _look_again(session, joined, table)
    workspaces = memory.cublas_workspaces(session.device, session.trace.pools)
    allocations = _allocations(session, joined, _labels(session, workspaces))
    addresses = AddressBook(
        allocations,
        _tensors(session),
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
        for index, (one, template, provenance) in enumerate(
            zip(session.captured, templates, joined, strict=True)
        ):
            known = list(zip(provenance.origins, provenance.calls, provenance.streams, strict=True))
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
                    name=one.name,
                    phase=one.phase,
                    callable=one.callable,
                    pool=one.pool_index,
                    nodes=tuple(read.nodes),
                    edges=read.edges,
                    capture_ns=one.capture_ns,
                    instantiate_ns=one.instantiate_ns,
                    upload_ns=one.upload_ns,
                    launch_ns=tuple(launch_ns[index]) if index < len(launch_ns) else (),
                    exec_bytes=one.exec_bytes,
                    raw_dot=part,
                )
            )
    for index, read in enumerate(contents):
        _bodies(reader, graphs, read, index)
    caveats = caveats + _caveats(session, joined, addresses)
    capture = Capture(
        entry=describe_entry(session),
        environment=environment.describe(session.device),
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
        recorder="frontier"
        if any(one.exact is not None for one in session.captured)
        else "node-callbacks",
        caveats=tuple(caveats),
    )
    return capture, raw


def describe_entry(session: Session) -> Entry:
    """The entry point and the options that were asked for, as they travel in the file."""
    workload = session.workload
    return Entry(
        spec=workload.spec,
        kind=workload.kind,
        file=workload.file,
        line=workload.line,
        callables=tuple(part.name for part in workload.parts),
        options=tuple(
            Option(name, str(value))
            for name, value in msgspec.structs.asdict(session.options).items()
        ),
    )


def _caveats(session: Session, joined: Sequence[Joined], addresses: AddressBook) -> list[Caveat]:
    found = [Caveat("note", note) for note in session.workload.notes]
    for one, provenance in zip(session.captured, joined, strict=True):
        if not provenance.origins:
            found.append(Caveat("empty-graph", f"{one.name} launches nothing: its graph is empty"))
    unmatched = sum(len(provenance.unmatched) for provenance in joined)
    if unmatched:
        found.append(
            Caveat(
                "ops-unmatched",
                f"{unmatched} nodes found no partner in the recorded warm-up: their line is "
                "known, their op is not. The captured iteration ran other code than the "
                "warm-up before it.",
            )
        )
    if any(one.exact is not None for one in session.captured):
        why = session.problem or "there was no warm-up iteration to record"
        found.append(
            Caveat(
                "recorded-in-capture",
                f"ops were recorded during the capture itself, which slows it down ({why})",
            )
        )
    dead = Counter(tensor.name for tensor in addresses.tensors if tensor.name.startswith("freed"))
    if dead:
        found.append(
            Caveat(
                "dead-input",
                f"kernels point into {sum(dead.values())} blocks that were already freed when the "
                "capture ended: their contents at replay are whatever comes to lie there",
            )
        )
    if session.trace.problem:
        found.append(Caveat("no-allocator-trace", session.trace.problem))
    return found
