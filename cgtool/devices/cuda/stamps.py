"""Provenance of a capture: a stamp on every node, and the op record of a warm-up.

A capture runs undisturbed except for one callback a node (CUPTI, ``cgtool.devices.cuda.cupti``),
which stamps the node with the Python frame, stream and autograd node at the time of its creation.
The rest, the ATen op, the module and the forward call of a backward node, comes from one warm-up
iteration that ran under the op recorder with its launches logged. The same code launches in the
same order, so launches and nodes are aligned by their place in the code. A node without a partner
keeps its own stamp, and its op is unknown.

Where CUPTI is not available, or no warm-up was recorded, ``InCaptureRecorder`` runs inside the
capture. It counts the graph's nodes around each op and notes the time and the stream of the op. It
slows the capture down, and of a node launched between two ops (Triton, a custom extension) it knows
only the time.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from cgtool.devices.cuda import cupti
from cgtool.devices.cuda.driver import capturing_graph, check, cu
from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import Site, chain_of, is_internal
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.torch_compat.private import (
    current_raw_stream,
    running_autograd_node,
    sequence_number_of,
)


class Stamp(NamedTuple):
    """What is known about a node when it is created."""

    handle: int | None
    """None where it follows from the order (``place_stamps``)."""
    time_ns: int
    """Of the system clock, as the allocator's trace."""
    stream: int
    innermost: Site | None
    """None on autograd's own threads."""
    user: Site | None
    """The nearest frame outside torch."""
    annotations: tuple[str, ...]
    autograd_node: str | None
    autograd_sequence: int | None


@dataclass(slots=True)
class Launch:
    """A launch of the recorded warm-up."""

    call: OpCall | None
    innermost: Site | None
    chain: tuple[Site, ...]
    autograd_node: str | None
    autograd_sequence: int | None
    module: tuple[str, str] | None
    annotations: tuple[str, ...]


Key = tuple[int, int, str | None]


def _key(innermost: Site | None, autograd_node: str | None) -> Key:
    return (
        (0, 0, autograd_node)
        if innermost is None
        else (id(innermost[0]), innermost[1], autograd_node)
    )


class LaunchLog:
    """The launches of an eager iteration, each with the op call that launched it."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.recorder: OpRecorder | None = None

    def count(self) -> int:
        return len(self.launches)

    def launched(self) -> None:
        recorder = self.recorder
        if recorder is None:
            return
        call: OpCall | None = getattr(recorder.running, "call", None)
        if call is not None:
            launch = Launch(
                call,
                call.innermost,
                call.chain,
                call.autograd_node,
                call.autograd_sequence,
                call.module,
                call.annotations,
            )
        else:
            # A launch outside any op: Triton, a custom extension.
            frame = sys._getframe(1).f_back
            node = running_autograd_node()
            launch = Launch(
                None,
                (frame.f_code, frame.f_lasti) if frame is not None else None,
                chain_of(frame),
                node.name() if node is not None else None,
                sequence_number_of(node) if node is not None else None,
                recorder.modules.current(),
                recorder.annotations.current(),
            )
        self.launches.append(launch)


HANDLES_READ = 4096
HANDLE_EVERY = 16
"""Reading a node's handle takes a quarter of the time of its stamp. It is read for the first nodes
of a capture and then for every 16th. Nodes in between are placed by their order; if two handles
contradict the order, the nodes between them are not placed."""


def _stamper(
    stamps: list[tuple[Any, ...]],
    annotations: Annotations,
    device: int,
) -> cupti.NodeCallback:
    """The callback. It runs once a node, between two launches, so it uses local names only, looks
    nothing up twice, and keeps a plain tuple in the order of Stamp."""
    append = stamps.append
    getframe = sys._getframe
    now = time.time_ns
    stream_of: Callable[[int], int] = current_raw_stream
    running_node: Callable[[], Any] = running_autograd_node
    pointer_at = cupti.pointer_at
    to_descriptor, to_node = cupti.DESCRIPTOR_OFFSET, cupti.NODE_OFFSET
    # By identity: hashing a code object hashes its bytecode. The sites keep the objects alive.
    internal: dict[int, bool] = {}
    kept: list[Any] = []

    def created(_user: Any, _domain: int, _id: int, data: int) -> None:
        time_ns = now()
        handle = None
        count = len(stamps)
        if count < HANDLES_READ or not count % HANDLE_EVERY:
            descriptor: Any = pointer_at(data + to_descriptor).value
            handle = pointer_at(descriptor + to_node).value
        innermost = user = None
        try:
            frame = getframe(1)
        except ValueError:
            # On autograd's threads there is no Python frame above this one.
            frame = None
        if frame is not None:
            code = frame.f_code
            innermost = site = (code, frame.f_lasti)
            while True:
                known = internal.get(id(code))
                if known is None:
                    known = internal[id(code)] = is_internal(code)
                    kept.append(code)
                if not known:
                    user = site
                    break
                frame = frame.f_back
                if frame is None:
                    break
                code = frame.f_code
                site = (code, frame.f_lasti)
        node = running_node()
        append(
            (
                handle,
                time_ns,
                stream_of(device),
                innermost,
                user,
                annotations.open,
                None if node is None else node.name(),
                None if node is None else sequence_number_of(node),
            )
        )

    return created


@dataclass
class Watch:
    """Stamps of one capture, in order of creation."""

    stamps: list[Stamp] = field(default_factory=list)
    problem: str | None = None
    """Why there are none, or None."""


@contextlib.contextmanager
def watch_capture(annotations: Annotations, device: int) -> Iterator[Watch]:
    """Stamp every node that is created while the context is entered."""
    watch = Watch()
    stamps: list[tuple[Any, ...]] = []
    callback = _stamper(stamps, annotations, device)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(cupti.watch_nodes(callback))
        except cupti.CuptiUnavailable as error:
            watch.problem = str(error)
        yield watch
    watch.stamps.extend(map(Stamp._make, stamps))


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
    left = [_key(launch.innermost, launch.autograd_node) for launch in launches]
    right = [_key(stamp.innermost, stamp.autograd_node) for stamp in stamps]
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
    # difflib takes quadratic time in the worst case.
    if len(middle_left) * len(middle_right) <= 40_000_000:
        matcher = difflib.SequenceMatcher(None, middle_left, middle_right, autojunk=False)
        for a, b, size in matcher.get_matching_blocks():
            for offset in range(size):
                joined[start + b + offset] = start + a + offset
    return joined


class Ran(NamedTuple):
    """When and where an op ran."""

    start_ns: int
    """Of the system clock, as the allocator's trace."""
    end_ns: int
    stream: int
    """Handle of the stream that was current."""


def _node_counter(stream: int) -> Callable[[], int]:
    """How many nodes the graph that ``stream`` is captured into has."""

    def count() -> int:
        graph = capturing_graph(stream)
        if graph is None:
            return 0
        _, number = check("cuGraphGetNodes", cu.cuGraphGetNodes(graph, 0))
        return int(number)

    return count


class InCaptureRecorder(OpRecorder):
    """Each call has its nodes as ``launches`` and a ``Ran`` as ``extra``."""

    def __init__(
        self,
        roots: Mapping[str, torch.nn.Module],
        annotations: Annotations,
        device: int,
        stream: int,
        accesses: AccessLog | None = None,
    ) -> None:
        """``stream`` is the handle of the capturing stream."""
        super().__init__(roots, annotations, _node_counter(stream), accesses, by_key=True)
        self._device = device

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        stream = current_raw_stream(self._device)
        start = time.time_ns()
        try:
            return super().execute(call, func, args, kwargs)
        finally:
            call.extra = Ran(start, time.time_ns(), stream)


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
