"""Provenance of a capture: a stamp on every node, and the op record of a warm-up.

A capture runs undisturbed except for one callback per node (CUPTI, ``cgtool.devices.cuda.cupti``),
which stamps the node with the Python frame, stream and autograd node at the time of its creation.
The rest, the ATen op, the module and the forward call of a backward node, comes from one warm-up
iteration that ran under the op recorder with its launches logged. ``provenance`` joins the two.

Where CUPTI is not available, or no warm-up was recorded, ``InCaptureRecorder`` runs inside the
capture. It counts the graph's nodes around each op and notes the time and the stream of the op. It
slows the capture down, and of a node launched between two ops (Triton, a custom extension) it knows
only the time.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import torch

from cgtool.devices.cuda import cupti
from cgtool.devices.cuda.driver import captured_nodes
from cgtool.model import clock
from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import Site, call_op, chain_of, is_generated, is_internal, package_part
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.private import (
    current_raw_stream,
    running_autograd_node,
    sequence_number_of,
)


class Stamp(NamedTuple):
    """The facts about a node at its creation."""

    handle: int | None
    """None if it follows from the order (``place_stamps``)."""
    time_ns: int
    """By the system clock, like the allocator's trace."""
    stream: int
    innermost: Site | None
    """None on autograd's threads."""
    user: Site | None
    """The nearest frame outside torch."""
    generated: Site | None
    """The nearest frame of code that Inductor generated, inside ``user``."""
    annotations: tuple[str, ...]
    autograd_node: str | None
    autograd_sequence: int | None


@dataclass(slots=True)
class LaunchOutsideOps:
    """A launch of the recorded warm-up outside any op: Triton, a custom extension."""

    innermost: Site | None
    chain: tuple[Site, ...]
    autograd_node: str | None
    autograd_sequence: int | None
    module: tuple[str, str] | None
    annotations: tuple[str, ...]


Launch = OpCall | LaunchOutsideOps
"""A launch of the recorded warm-up: the op call that it ran in, if any."""


class LaunchLog:
    """Logs the launches of an eager iteration, each with its op call."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.recorder: OpRecorder | None = None

    def count(self) -> int:
        return len(self.launches)

    def launched(self) -> None:
        recorder = self.recorder
        if recorder is None:
            return
        launch: Launch | None = recorder.running.call
        if launch is None:
            frame = sys._getframe(1).f_back
            node = running_autograd_node()
            launch = LaunchOutsideOps(
                innermost=(frame.f_code, frame.f_lasti) if frame is not None else None,
                chain=chain_of(frame),
                autograd_node=node.name() if node is not None else None,
                autograd_sequence=sequence_number_of(node) if node is not None else None,
                module=recorder.modules.current(),
                annotations=recorder.annotations.current(),
            )
        self.launches.append(launch)


HANDLES_READ = 4096
HANDLE_EVERY = 16
"""Reading a node's handle takes a quarter of the time of its stamp. It is read for the first nodes
of a capture and then for every 16th. Nodes in between are placed by their order; if two handles
contradict the order, the nodes between them are not placed."""


_USERS, _INTERNAL, _GENERATED, _WATCHING = range(4)
_WATCHERS = ("torch_compat/op_key.py", "torch_compat/dispatch_keys.py", "devices/cuda/stepping.py")
"""Files of cgtool whose functions, like ``call_op``, are between a watched op and its caller."""


def _kind_of(code: CodeType) -> int:
    part = package_part(code.co_filename)
    if code is call_op.__code__ or part in [f"/cgtool/{file}" for file in _WATCHERS]:
        return _WATCHING
    if is_generated(code.co_filename):
        return _GENERATED
    return _INTERNAL if is_internal(code) else _USERS


def _stamper(
    stamps: list[tuple[Any, ...]], annotations: Annotations, device: int
) -> cupti.NodeCallback:
    """The callback. It runs once per node, between two launches, so it uses local names only, looks
    nothing up twice, and keeps a plain tuple in the order of Stamp."""
    append = stamps.append
    getframe = sys._getframe
    now = clock.time_ns
    stream_of: Callable[[int], int] = current_raw_stream
    running_node: Callable[[], Any] = running_autograd_node
    pointer_at = cupti.pointer_at
    to_descriptor, to_node = cupti.DESCRIPTOR_OFFSET, cupti.NODE_OFFSET
    # By identity: hashing a code object hashes its bytecode. The sites keep the objects alive.
    kinds: dict[int, int] = {}
    kept: list[Any] = []

    def created(_user: Any, _domain: int, _id: int, data: int) -> None:
        time_ns = now()
        handle = None
        count = len(stamps)
        if count < HANDLES_READ or not count % HANDLE_EVERY:
            descriptor: Any = pointer_at(data + to_descriptor).value
            handle = pointer_at(descriptor + to_node).value
        innermost = user = generated = None
        try:
            frame = getframe(1)
        except ValueError:
            # On autograd's threads there is no Python frame above this one.
            frame = None
        if frame is not None:
            code = frame.f_code
            innermost = site = (code, frame.f_lasti)
            while True:
                kind = kinds.get(id(code))
                if kind is None:
                    kind = kinds[id(code)] = _kind_of(code)
                    kept.append(code)
                if kind == _USERS:
                    user = site
                    break
                if kind == _GENERATED:
                    generated = generated or site
                frame = frame.f_back
                if frame is None:
                    break
                code = frame.f_code
                moves = kind == _WATCHING and innermost is site
                site = (code, frame.f_lasti)
                if moves:
                    innermost = site
        node = running_node()
        append(
            (
                handle,
                time_ns,
                stream_of(device),
                innermost,
                user,
                generated,
                annotations.open,
                None if node is None else node.name(),
                None if node is None else sequence_number_of(node),
            )
        )

    return created


@contextlib.contextmanager
def watch_capture(annotations: Annotations, device: int) -> Iterator[list[Stamp]]:
    """The stamps of all nodes that are created while entered, in that order; filled on exit.

    Raises CuptiUnavailable.
    """
    stamps: list[Stamp] = []
    created: list[tuple[Any, ...]] = []
    with cupti.watch_nodes(_stamper(created, annotations, device)):
        yield stamps
    stamps.extend(map(Stamp._make, created))


class OpTiming(NamedTuple):
    """When an op ran, and on which stream."""

    start_ns: int
    """By the system clock, like the allocator's trace."""
    end_ns: int
    stream: int
    """Handle of the stream that was current."""


class InCaptureRecorder(OpRecorder):
    """Each call has its nodes as ``launches`` and a ``OpTiming`` as ``extra``."""

    def __init__(
        self,
        roots: Mapping[str, torch.nn.Module],
        annotations: Annotations,
        device: int,
        stream: int,
        accesses: AccessLog | None,
    ) -> None:
        """``stream`` is the handle of the capturing stream."""
        super().__init__(roots, annotations, partial(captured_nodes, stream), accesses)
        self._device = device

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        stream = current_raw_stream(self._device)
        start = clock.time_ns()
        try:
            return super().execute(call, func, args, kwargs)
        finally:
            call.extra = OpTiming(start, clock.time_ns(), stream)
