"""The op, line, stream and time of creation of each node of a captured graph."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cgtool.devices.cuda.session import CudaGraph, CudaSession
from cgtool.devices.cuda.stamps import Stamp, align, makers, place_stamps, times_ns
from cgtool.model.failure import CgtoolError
from cgtool.observe.annotations import watch
from cgtool.observe.ops import OpCall
from cgtool.observe.origins import OriginTable

_FEW = 8
"""Launches without a node that are listed."""


class Joined(msgspec.Struct):
    """What is known about each node, in creation order."""

    origins: list[int | None]
    calls: list[OpCall | None]
    streams: list[int | None]
    times_ns: list[int]
    """Not decreasing."""
    unmatched: list[int]
    """Nodes whose op is unknown."""
    eager_launches: int | None = None
    eager_only: tuple[int, ...] = ()
    """As in ``Graph``."""


def join(session: CudaSession, handles: Sequence[list[int]], table: OriginTable) -> list[Joined]:
    """Of every captured graph. ``handles`` are those of its nodes in creation order."""
    joined = [
        _join_stamps(session, graph, numbers, table)
        if graph.exact is None
        else _join_in_capture(session, graph, len(numbers), table)
        for graph, numbers in zip(session.captured, handles, strict=True)
    ]
    if any(
        provenance.unmatched and graph.exact is None
        for graph, provenance in zip(session.captured, joined, strict=True)
    ):
        _capture_again(session, joined, table)
    return joined


def _join_stamps(
    session: CudaSession, graph: CudaGraph, handles: list[int], table: OriginTable
) -> Joined:
    stamps = place_stamps(handles, graph.stamps)
    present = [stamp for stamp in stamps if stamp is not None]
    recorded = graph.recorded
    launches = recorded.launches if recorded is not None else []
    aligned = align(launches, present)
    partners = iter(aligned)
    origins: list[int | None] = []
    calls: list[OpCall | None] = []
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
            calls.append(launch.call)
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
    last = graph.window.start_ns
    times = []
    for stamp in stamps:
        last = stamp.time_ns if stamp is not None else last
        times.append(last)
    streams = [session.streams[stamp.stream] if stamp else None for stamp in stamps]
    joined = Joined(origins, calls, streams, times, unmatched)
    if recorded is not None:
        used = {index for index in aligned if index is not None}
        left = [launch for index, launch in enumerate(launches) if index not in used]
        joined.eager_launches = len(launches)
        joined.eager_only = tuple(
            table.add(launch.call, recorded.record)
            for launch in left[:_FEW]
            if launch.call is not None
        )
    return joined


def _stamp_origin(stamp: Stamp, table: OriginTable) -> int:
    return table.add_site(
        op=None,
        chain=(stamp.user,) if stamp.user is not None else (),
        module=None,
        annotations=stamp.annotations,
        autograd_node=stamp.autograd_node,
    )


def _join_in_capture(
    session: CudaSession, graph: CudaGraph, count: int, table: OriginTable
) -> Joined:
    """Provenance from the recorder that ran during the capture."""
    assert graph.exact is not None
    made_by = makers(graph.exact_calls, count)
    origins = [table.add(call, graph.exact) if call is not None else None for call in made_by]
    return Joined(
        origins,
        calls=made_by,
        streams=[
            session.streams[call.extra.stream] if call is not None else None for call in made_by
        ],
        times_ns=times_ns(graph.exact_calls, made_by, graph.window.end_ns),
        unmatched=[node for node, call in enumerate(made_by) if call is None],
    )


def _capture_again(session: CudaSession, joined: Sequence[Joined], table: OriginTable) -> None:
    """Find the ops that ran only while capturing: capture once more, with the recorder inside.

    The second capture is discarded. It counts for a node only where it has as many nodes and the
    same line; the other nodes stay unmatched.
    """
    again = CudaSession(
        session.workload, session.options, device=session.device, stream=session.stream
    )
    try:
        with watch(session.options.annotations) as ranges:
            again.capture(ranges)
    except (CgtoolError, RuntimeError):
        return
    for provenance, second in zip(joined, again.captured, strict=False):
        count = len(provenance.origins)
        if not provenance.unmatched or second.node_count() != count:
            continue
        exact = _join_in_capture(again, second, count, table)
        origins = table.origins
        still: list[int] = []
        for node in provenance.unmatched:
            origin, exact_origin = provenance.origins[node], exact.origins[node]
            if (
                origin is None
                or exact_origin is None
                or origins[origin].frames[:1] != origins[exact_origin].frames[:1]
            ):
                still.append(node)
                continue
            provenance.origins[node] = exact_origin
            call = provenance.calls[node] = exact.calls[node]
            if call is not None and call.access is not None:
                # The storages are those of the second capture.
                call.access = msgspec.structs.replace(call.access, reads=(), writes=())
        provenance.unmatched = still
