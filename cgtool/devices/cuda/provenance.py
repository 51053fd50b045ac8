"""The op, line, stream and time of creation of each node of a captured graph.

The same code launches in the same order, so the launches of the recorded warm-up and the stamps of
nodes are aligned by their place in the code. A node without a partner keeps its own stamp, and its
op is unknown.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from cgtool.devices.cuda.session import CudaPhaseGraph, CudaSession
from cgtool.devices.cuda.stamps import Launch, Stamp
from cgtool.model.failure import CgtoolError
from cgtool.observe.ops import OpCall, Record
from cgtool.observe.origins import OriginTable

_MOST_COMPARED = 40_000_000
"""Pairs of launch and stamp: difflib takes quadratic time in the worst case."""


@dataclass
class Joined:
    """The op, line and stamp of each node, in creation order."""

    origins: list[int | None] = field(default_factory=list)
    calls: list[OpCall | None] = field(default_factory=list)
    streams: list[int | None] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    """In nondecreasing order."""
    unmatched: list[int] = field(default_factory=list)
    """Nodes whose op is unknown."""
    eager_launches: int | None = None
    """Same as in ``Graph``."""


def join(session: CudaSession, handles: Sequence[list[int]], table: OriginTable) -> list[Joined]:
    """Provenance of every captured graph; ``handles`` of its nodes are in creation order."""
    joined = [
        _join_stamps(session, graph, numbers, table)
        if graph.exact is None
        else _join_in_capture(session, graph, graph.exact, len(numbers), table)
        for graph, numbers in zip(session.graphs, handles, strict=True)
    ]
    if any(
        provenance.unmatched and graph.exact is None
        for graph, provenance in zip(session.graphs, joined, strict=True)
    ):
        _capture_again(session, joined, handles, table)
    return joined


def _join_stamps(
    session: CudaSession, graph: CudaPhaseGraph, handles: list[int], table: OriginTable
) -> Joined:
    recorded = graph.recorded
    assert recorded is not None
    launches = recorded.launches
    stamps = place_stamps(handles, graph.stamps)
    aligned = align(launches, [stamp for stamp in stamps if stamp is not None])
    partners = iter(aligned)
    joined = Joined(eager_launches=len(launches))
    time_ns = graph.start_ns
    for node, stamp in enumerate(stamps):
        launch = origin = None
        if stamp is not None:
            time_ns = stamp.time_ns
            index = next(partners)
            if index is None and stamp.generated is not None:
                # Under the op recorder, compiled code ran eagerly.
                assert session.generated_code is not None
                source = session.generated_code.source(stamp.generated)
                chain = () if stamp.user is None else (stamp.user,)
                origin = table.add_generated(None, source, chain, stamp.autograd_node)
            elif index is None:
                origin = table.add_site(
                    op=None,
                    chain=(stamp.user,) if stamp.user is not None else (),
                    module=None,
                    annotations=stamp.annotations,
                    autograd_node=stamp.autograd_node,
                )
            else:
                launch = launches[index]
                origin = _origin_of(launch, recorded.record, table)
        if launch is None and (stamp is None or stamp.generated is None):
            joined.unmatched.append(node)
        joined.origins.append(origin)
        joined.calls.append(launch if isinstance(launch, OpCall) else None)
        joined.streams.append(None if stamp is None else session.streams[stamp.stream])
        joined.times_ns.append(time_ns)
    # A recorder in the capture, which notes memory, knows the ops themselves.
    for node, call in enumerate(makers(graph.exact_calls, len(handles))):
        if call is not None:
            joined.origins[node] = table.add(call, session.exact_record)
            joined.calls[node] = call
    joined.unmatched = [node for node in joined.unmatched if joined.calls[node] is None]
    return joined


def _origin_of(launch: Launch, record: Record, table: OriginTable) -> int:
    if isinstance(launch, OpCall):
        return table.add(launch, record)
    forward_call = record.maker_of(launch.autograd_sequence, launch.autograd_node)
    return table.add_site(
        op=None,
        chain=launch.chain,
        module=launch.module or (forward_call.module if forward_call else None),
        annotations=launch.annotations,
        autograd_node=launch.autograd_node,
        forward=table.add(forward_call, record) if forward_call else None,
    )


def _join_in_capture(
    session: CudaSession, graph: CudaPhaseGraph, exact: Record, count: int, table: OriginTable
) -> Joined:
    """Provenance from the recorder that ran during the capture."""
    made_by = makers(graph.exact_calls, count)
    return Joined(
        origins=[None if call is None else table.add(call, exact) for call in made_by],
        calls=made_by,
        streams=[None if call is None else session.streams[call.extra.stream] for call in made_by],
        times_ns=times_ns(graph.exact_calls, made_by, graph.end_ns),
        unmatched=[node for node, call in enumerate(made_by) if call is None],
    )


def _capture_again(
    session: CudaSession,
    joined: list[Joined],
    handles: Sequence[list[int]],
    table: OriginTable,
) -> None:
    """Find the ops that ran only while capturing: capture once more, with the recorder inside.

    The second capture is discarded. It counts where its ops are called from the same place in the
    code as the nodes: for a whole graph if all of them are, so that reads and writes fit together.
    """
    again = CudaSession(
        session.workload, session.options, device=session.device, stream=session.stream
    )
    again.accesses = session.accesses
    try:
        again.capture()
    except (CgtoolError, RuntimeError):
        return
    for provenance, graph, second, numbers in zip(
        joined, session.graphs, again.graphs, handles, strict=False
    ):
        count = len(provenance.origins)
        if not provenance.unmatched or second.exact is None or second.node_count() != count:
            continue
        exact = _join_in_capture(again, second, second.exact, count, table)
        stamps = place_stamps(numbers, graph.stamps)
        same = [
            call is not None and stamp is not None and _key(call) == _key(stamp)
            for call, stamp in zip(exact.calls, stamps, strict=True)
        ]
        # Between two ops the recorder inside the capture sees nothing.
        outside = [call is None for call in exact.calls]
        is_whole = all(map(operator.or_, same, outside))
        for node in range(count) if is_whole else provenance.unmatched:
            if not same[node]:
                continue
            provenance.origins[node] = exact.origins[node]
            call = provenance.calls[node] = exact.calls[node]
            if not is_whole and call is not None and call.access is not None:
                # The storages are those of the second capture.
                call.access = msgspec.structs.replace(call.access, reads=(), writes=(), operands=())
        provenance.unmatched = [node for node in provenance.unmatched if not same[node]]


def place_stamps(handles: Sequence[int], stamps: Sequence[Stamp]) -> list[Stamp | None]:
    """The stamp of each node, for the handles of one graph in order of creation.

    Stamps of other graphs (bodies of nodes) are skipped; a node without a stamp gets None.
    """
    number = {handle: index for index, handle in enumerate(handles)}
    placed: list[Stamp | None] = [None] * len(handles)
    between: list[Stamp] = []
    last = -1
    for stamp in stamps:
        if stamp.handle is None:
            between.append(stamp)
            continue
        index = number.get(stamp.handle)
        if index is None:
            between.clear()
            continue
        if index - last - 1 == len(between):
            placed[last + 1 : index] = between
        placed[index] = stamp
        between.clear()
        last = index
    if len(handles) - last - 1 == len(between):
        placed[last + 1 :] = between
    return placed


def align(launches: Sequence[Launch], stamps: Sequence[Stamp]) -> list[int | None]:
    """For each stamp, the index of its launch, or None.

    Exact when the warm-up and the capture ran the same code, which is the usual case. Where they
    differ (a first iteration that caches, a branch on ``is_current_stream_capturing``), the longest
    common runs are matched and the rest gets None.
    """
    left, right = [*map(_key, launches)], [*map(_key, stamps)]
    if left == right:
        return list(range(len(right)))
    joined: list[int | None] = [None] * len(right)
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        joined[start] = start
        start += 1
    end = 0
    while (
        end < min(len(left), len(right)) - start
        and left[len(left) - 1 - end] == right[len(right) - 1 - end]
    ):
        joined[len(right) - 1 - end] = len(left) - 1 - end
        end += 1
    middle_left = left[start : len(left) - end]
    middle_right = right[start : len(right) - end]
    if len(middle_left) * len(middle_right) <= _MOST_COMPARED:
        matcher = difflib.SequenceMatcher(None, middle_left, middle_right, autojunk=False)
        for a, b, size in matcher.get_matching_blocks():
            for offset in range(size):
                joined[start + b + offset] = start + a + offset
    return joined


def _key(launch: Launch | Stamp) -> tuple[int, int, str | None]:
    if launch.innermost is None:
        return 0, 0, launch.autograd_node
    code, instruction = launch.innermost
    return id(code), instruction, launch.autograd_node


def makers(calls: Sequence[OpCall], count: int) -> list[OpCall | None]:
    """The innermost op that launched each of ``count`` nodes; None for those between two ops."""
    launched_by: list[OpCall | None] = [None] * count
    for call in calls:
        for node in range(call.launches[0], min(call.launches[1], count)):
            # Ops nest: the innermost comes last in the record and wins.
            launched_by[node] = call
    return launched_by


def times_ns(calls: Sequence[OpCall], made_by: Sequence[OpCall | None], end_ns: int) -> list[int]:
    """A time for each node, in creation order: after the allocations of its op, and before those
    of the next."""
    # Nodes between two ops were there when the next op began.
    bounds: dict[int, int] = {}
    for call in calls:
        bounds.setdefault(call.launches[0], call.extra.start_ns)
    times = [0] * len(made_by)
    latest = end_ns
    for node in range(len(made_by) - 1, -1, -1):
        latest = min(latest, bounds.get(node + 1, latest))
        call_of = made_by[node]
        if call_of is not None:
            latest = min(latest, call_of.extra.end_ns)
        times[node] = latest
    return times
