"""A model of the streams of a capture: its forks, joins and order, and what is wrong with them.

It follows the streams of the simulated device and, on a GPU, the calls that the user's code makes
on the real streams.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cgtool.detectors.capture_errors import (
    API_ORDER_MISUSE,
    INSIDE_ANOTHER,
    NOT_NESTED,
    ONE_BY_ONE,
)
from cgtool.detectors.function_rules import watch_functions
from cgtool.detectors.generator_states import GeneratorStates
from cgtool.detectors.reporting import CapturedRegion
from cgtool.detectors.stream_races import STREAM_RACE_IN_CAPTURE, StreamRaces, accesses, other_line
from cgtool.findings import code
from cgtool.model.finding import Finding
from cgtool.observe.frames import Chain, callers, frames_of, here, package_part
from cgtool.observe.ops import OpCall
from cgtool.observe.script.state import Clock, merge
from cgtool.observe.waiting import callers_of_backward
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.storages import StorageRef
from cgtool.torch_compat.weak import Weak

ACCUMULATE_GRAD_DEFAULT_STREAM = code("accumulate-grad-default-stream")
CONCURRENCY_LOST_OR_FALSE_DEPENDENCY = code("concurrency-lost-or-false-dependency")
DEFAULT_STREAM_DEPENDENCY = code("default-stream-dependency")
EXPLICIT_SYNCHRONIZE = code("explicit-synchronize")
KERNEL_ON_STREAM_ZERO = code("kernel-on-stream-zero")
OTHER_THREAD_CUDA_CALL = code("other-thread-cuda-call")
RECORD_STREAM_DEFERS_REUSE = code("record-stream-defers-reuse")
SIDE_STREAM_NOT_FORKED = code("side-stream-not-forked")
UNJOINED_SIDE_STREAM = code("unjoined-side-stream")
WAIT_ON_PRECAPTURE_WORK = code("wait-on-precapture-work")

NOT_CAPTURED = frozenset((KERNEL_ON_STREAM_ZERO, SIDE_STREAM_NOT_FORKED))
"""Work that is not part of the capture, which may succeed without it."""
Frontier = frozenset[int]

_GRAPHS = "/torch/cuda/graphs.py"
_PASSED_OVER = "/cgtool/", "/torch/cuda/__init__.py"
"""`torch.cuda.synchronize`, and what it calls."""
_BEGINS_IN_THREAD = (
    "the capture could not begin (900): another thread is capturing, and `torch.cuda.graph` "
    "synchronizes the device"
)
UNFORKED = (
    "the stream did not wait for the capture stream: its work either fails "
    "(cudaErrorStreamCaptureUnsupported, 900), or runs once during capture and in no replay; the "
    "capture cannot wait for it (cudaErrorStreamCaptureIsolation, 905)"
)
_DEFAULT_STREAM = (
    "the default stream is not part of the capture: its work runs once during capture and in no "
    "replay"
)
_FIX_IN_THREAD = (
    "pass `stream = torch.cuda.current_stream()` to the thread, and run its work under `with "
    "torch.cuda.stream(stream):`: in a new thread the default stream is the current one"
)
STALE_NODE = (
    "backward would make the default stream wait for the capture (906): an autograd node that "
    "accumulates gradients was made on the default stream, and something keeps it alive"
)
_LEAST_BRANCH = 5
"""Branches with fewer nodes gain less than their fork and join cost."""


class Lane:
    """One stream, as a capture sees it."""

    def __init__(self, name: str, created: Chain = ()) -> None:
        self.name = name
        self.created = created
        self.joined: int | None = None
        """Number of the capture that this stream is part of."""
        self.frontier: Frontier = frozenset()
        """Nodes that the next work on this stream must wait for."""
        self.used: Chain = ()
        """Where work was last submitted to it, innermost first."""
        self.left_out: int | None = None
        """Number of the last capture that it had work in without being part of it."""


def _described(lane: Lane) -> str:
    """``a stream that was created at model.py:12``, where that is known and it has no name."""
    places = [frame.short for frame in frames_of(lane.created[:1])]
    is_numbered = lane.name.startswith("stream ")
    return f"a stream that was created at {places[0]}" if places and is_numbered else lane.name


@dataclass(slots=True)
class LaneNode:
    """An op that launches work, as a node of the graph."""

    call: OpCall
    stream: int
    """Index into ``CaptureInProgress.streams``."""
    dependencies: tuple[int, ...]


class _Current(threading.local):
    """The stream that a thread has made current."""

    lane: Any = None


def _begins_capture() -> bool:
    """Whether what calls cgtool is ``torch.cuda.graph`` or ``make_graphed_callables``."""
    files = (package_part(frame.f_code.co_filename) for frame in callers(sys._getframe(1)))
    return next((file for file in files if not file.startswith(_PASSED_OVER)), "") == _GRAPHS


class CaptureInProgress(CapturedRegion):
    """The capture in progress and the streams that are part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.default: Lane = Lane("default stream")
        self._current = _Current()
        self.capture_id: int | None = None
        """Number of the capture in progress."""
        self.captures = 0
        self.streams: list[Lane] = []
        """Streams of the capture in progress, the capture stream first."""
        self.nodes: list[LaneNode] = []
        """The nodes of the capture in progress, or of the last one."""
        self._functions = Patches()
        """The functions of PyTorch that are replaced while a capture is in progress."""
        self._joins: list[Finding] = []
        """A finding for each join, reported if no two branches are left."""
        self._clocks: list[Clock] = []
        """By node: how many nodes of each stream come before it, itself included."""
        self._races: StreamRaces[int] = StreamRaces()
        self._generator = GeneratorStates(self.generator_state)
        self.follows_generator = False
        """Captures that go on after a refusal, those of a dry run, do so anyway."""
        self._recorded: list[tuple[Weak[Any], Finding]] = []
        """Tensors of which `record_stream` was called in this capture, and what to report."""
        self._deferred: dict[int, StorageRef] = {}
        """Their storages by key."""

    def generator_state(self) -> torch.Tensor:
        """The state of the default generator now."""
        return torch.get_rng_state()

    @property
    def current(self) -> Any:
        """The current stream of this thread: in a new one the default stream."""
        return self._current.lane or self.default

    @current.setter
    def current(self, lane: Any) -> None:
        self._current.lane = lane

    @property
    def capturing(self) -> bool:
        return self.capture_id is not None

    @property
    def current_is_capturing(self) -> bool:
        """Whether the current stream is part of the capture."""
        return self.capturing and self.current.joined == self.capture_id

    def begin(self, lane: Lane, phase: str, mode: str = "global") -> None:
        """Begin a capture on ``lane``."""
        self.captures += 1
        self.refusal, self.thread, self.mode = None, threading.get_ident(), mode
        self.capture_id, self.phase = self.captures, phase
        self.streams, self.nodes, self._joins, self._recorded = [lane], [], [], []
        self._clocks, self._races, self._deferred = [], StreamRaces(), {}
        lane.joined, lane.frontier = self.capture_id, frozenset()
        self._functions = watch_functions(self)
        if self.follows_generator or self.collecting:
            self._generator.begin()

    def end(self) -> None:
        """End the capture."""
        if self.follows_generator or self.collecting:
            self.findings.extend(self._generator.end())
        self._functions.close()
        self.capture_id = None

    def refuse_synchronize(self, call: str, *, in_all_modes: bool = False) -> None:
        """A call that waits for the device. ``torch.cuda.graph`` has one before it captures."""
        is_permitted = self.in_other_thread and self.mode != "global" and not in_all_modes
        if self.capturing and not is_permitted and _begins_capture():
            if self.in_other_thread:
                self.report(OTHER_THREAD_CUDA_CALL, _BEGINS_IN_THREAD, fix=ONE_BY_ONE)
            else:
                self.report(API_ORDER_MISUSE, INSIDE_ANOTHER, fix=NOT_NESTED)
        else:
            self.refuse(EXPLICIT_SYNCHRONIZE, call, in_all_modes=in_all_modes)

    def wait(
        self, waiting: Lane, joined: int | None, frontier: Frontier, waited: Lane | None = None
    ) -> None:
        """Let ``waiting`` wait for nodes ``frontier`` of the capture ``joined`` (None: none).
        ``waited``: the stream that has or had them, if it is known."""
        if not self.capturing:
            return
        if joined != self.capture_id:
            if waited is not None and waited.left_out == self.capture_id:
                self.refuse_join()
            elif waiting.joined == self.capture_id:
                self.report(
                    WAIT_ON_PRECAPTURE_WORK,
                    "the capture waits for work submitted outside it",
                    why="CUDA refuses this (cudaErrorStreamCaptureIsolation, 905)",
                )
            return
        if waiting is self.default:
            self.report(
                DEFAULT_STREAM_DEPENDENCY,
                "the default stream waits for a stream that is capturing",
                why="the default stream cannot be part of a capture; CUDA refuses this "
                "(cudaErrorStreamCaptureImplicit, 906)",
            )
        if waiting.joined != self.capture_id:
            waiting.joined = self.capture_id
            waiting.frontier = frozenset()
            self.streams.append(waiting)
        elif not frontier <= waiting.frontier:
            self._joins.append(
                Finding(
                    CONCURRENCY_LOST_OR_FALSE_DEPENDENCY,
                    f"{waiting.name} waits here for all previous work, so that no work of two "
                    "streams can run at the same time",
                    here(2),
                    phase=self.phase,
                )
            )
        waiting.frontier |= frontier

    def refuse_join(self) -> None:
        """A stream waits for work that was reported not to be part of the capture."""

    def report_left_out(self, reason: str, *, allocates: bool) -> None:
        """Work on a stream that was not forked; without an allocation, it does not end the
        capture."""
        self.report(SIDE_STREAM_NOT_FORKED, reason, why=UNFORKED)

    def add_node(self, call: OpCall, *, allocates: bool = True) -> LaneNode | None:
        """Add work on the current stream; None when that is not part of the capture.
        ``allocates``: it makes a tensor."""
        lane = self.current
        by_autograd = call.autograd_node is not None and lane is not self.default
        if by_autograd and lane not in self.streams:
            # Autograd's engine runs a node on the stream of its forward op, and makes the streams
            # of a backward wait for each other.
            lane.joined, lane.frontier = self.capture_id, self.streams[0].frontier
            self.streams.append(lane)
        if lane not in self.streams:
            reason = f"{call.name} runs on {_described(lane)}, which is not part of the capture"
            if lane is self.default and (call.autograd_node or "").endswith("AccumulateGrad"):
                # An op of the node, or of a hook that runs before or after it.
                frames = frames_of(callers_of_backward())
                self.report(ACCUMULATE_GRAD_DEFAULT_STREAM, STALE_NODE, frames)
            elif lane is self.default:
                fix = _FIX_IN_THREAD if self.in_other_thread else None
                self.report(KERNEL_ON_STREAM_ZERO, reason, why=_DEFAULT_STREAM, fix=fix)
            else:
                lane.left_out = self.capture_id
                self.report_left_out(reason, allocates=allocates)
            return None
        node = LaneNode(call, self.streams.index(lane), tuple(sorted(lane.frontier)))
        clock = self._clock_of(lane.frontier)
        clock[node.stream] = clock.get(node.stream, 0) + 1
        self._clocks.append(clock)
        lane.frontier = frozenset((len(self.nodes),))
        if by_autograd and call.is_autograds:
            self.streams[0].frontier |= lane.frontier
        lane.used = call.chain
        self.nodes.append(node)
        self._note_kept_blocks()
        return node

    def note_record_stream(self, tensor: Any) -> None:
        """The code calls `record_stream` of a tensor."""
        if self.collecting and self.capturing:
            storage = StorageRef(tensor)
            self._deferred[storage.key] = storage
            reason = (
                "the tensor is freed during the capture, and because of this call its block cannot "
                "be reused until the capture ends"
            )
            finding = Finding(RECORD_STREAM_DEFERS_REUSE, reason, here(2), phase=self.phase)
            self._recorded.append((Weak(tensor), finding))

    def _note_kept_blocks(self) -> None:
        """After a node: blocks that are free by now, and that nothing can reuse."""
        if self._recorded:
            self.findings.extend(finding for ref, finding in self._recorded if ref() is None)
            self._recorded = [each for each in self._recorded if each[0]() is not None]

    def note_memory(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Notes the memory that the op of the last node used, and reports races with other
        streams."""
        if not self.collecting or not self.nodes:
            return
        number, node, clock = len(self.nodes) - 1, self.nodes[-1], self._clocks[-1]
        if node.call.autograd_node is not None:
            # Autograd's engine makes the streams of a backward wait for each other.
            return
        tensors = accesses(func, node.call.name, args, kwargs, result)
        is_before = partial(self._is_in, clock)
        for race in self._races.use(number, node.stream, tensors, is_before, self._is_free):
            line = other_line(frames_of(self.nodes[race.node].call.chain))
            self.note(STREAM_RACE_IN_CAPTURE, race.reason, line, fix=race.fix)

    def is_dead(self, storage: StorageRef) -> bool:
        """Whether the user's code owns a storage no longer."""
        return storage.expired()

    def _is_free(self, storage: StorageRef) -> bool:
        # Blocks of `record_stream` are kept until the capture ends.
        return storage.key not in self._deferred and self.is_dead(storage)

    def _clock_of(self, frontier: Frontier) -> Clock:
        """The vector clock of something that waits for these nodes."""
        clock: Clock = {}
        for node in frontier:
            merge(clock, self._clocks[node])
        return clock

    def _is_in(self, clock: Clock, node: int) -> bool:
        """Whether a node is among what comes before. Those of one stream follow each other."""
        stream = self.nodes[node].stream
        return clock.get(stream, 0) >= self._clocks[node][stream]

    def check_joins(self) -> None:
        """Report, at the end of a capture, side streams that are not joined, and forks without
        effect. Raises CgtoolError unless the region collects."""
        self.require_valid()
        capture_stream, *others = self.streams
        reached = self._clock_of(capture_stream.frontier)
        for lane in others:
            if not all(self._is_in(reached, node) for node in lane.frontier):
                self.report(
                    UNJOINED_SIDE_STREAM,
                    f"{_described(lane)} has work that is not joined",
                    frames_of(lane.used or lane.created),
                    why="the capture ended while the capture stream did not wait for this work; "
                    "CUDA refuses this (cudaErrorStreamCaptureUnjoined, 904)",
                )
        if self.collecting:
            self._lost_concurrency()

    def _lost_concurrency(self) -> None:
        counts = Counter(node.stream for node in self.nodes)
        if sum(count >= _LEAST_BRANCH for count in counts.values()) < 2 or not self._joins:
            return
        # If an earlier node is neither before nor after another one, there are two branches.
        if all(sum(clock.values()) == number for number, clock in enumerate(self._clocks, 1)):
            self.findings.add(self._joins[0])


@contextlib.contextmanager
def capturing(
    device: CaptureInProgress, lane: Lane, phase: str, mode: str = "global"
) -> Iterator[None]:
    """Capture on ``lane``, which is the current stream while entered."""
    device.begin(lane, phase, mode)
    before, device.current = device.current, lane
    try:
        yield
    except Exception:
        # What the code raises after a refusal, of which another thread may know, is a consequence.
        device.require_valid()
        raise
    finally:
        device.current = before
        device.end()
