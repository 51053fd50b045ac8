"""Streams of a capture: who takes part, what comes after what, which forks and joins are wrong.

The same model follows the simulated device's own streams and, on a GPU, the calls that the user's
code makes on the real ones.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from cgtool.detectors.reporting import CapturedRegion
from cgtool.findings.registry import code
from cgtool.model.finding import Finding
from cgtool.observe.frames import Site, frames_of, here
from cgtool.observe.ops import OpCall

CONCURRENCY_LOST_OR_FALSE_DEPENDENCY = code("concurrency-lost-or-false-dependency")
DEFAULT_STREAM_DEPENDENCY = code("default-stream-dependency")
KERNEL_ON_STREAM_ZERO = code("kernel-on-stream-zero")
SIDE_STREAM_NOT_FORKED = code("side-stream-not-forked")
UNJOINED_SIDE_STREAM = code("unjoined-side-stream")
WAIT_ON_PRECAPTURE_WORK = code("wait-on-precapture-work")

Frontier = frozenset[int]

_ISOLATION = "CUDA answers 905, cudaErrorStreamCaptureIsolation"
_IMPLICIT = (
    "the default stream cannot take part in a capture: CUDA answers 906, "
    "cudaErrorStreamCaptureImplicit"
)
_UNJOINED = (
    "the capture ended while this work had no path back to the capturing stream: CUDA answers 904, "
    "cudaErrorStreamCaptureUnjoined"
)
_UNFORKED = (
    "nothing made the stream wait for the capturing one: a GPU refuses what it does (900, "
    "cudaErrorStreamCaptureUnsupported), or runs it once now and in no replay"
)
_ZERO = (
    "the default stream takes no part in a capture: what runs there runs once, now, and in no "
    "replay"
)


_BRANCH = 5
"""Branches of fewer nodes gain less than their fork and join cost."""


class Lane:
    """One stream, as far as captures know it."""

    def __init__(self, name: str, created: tuple[Site, ...] = ()) -> None:
        self.name = name
        self.created = created
        self.joined: int | None = None
        """The capture that this stream takes part in."""
        self.frontier: Frontier = frozenset()
        """The nodes that whatever comes next has to wait for."""
        self.used: tuple[Site, ...] = ()
        """Where work was last submitted to it."""


@dataclass(slots=True)
class LaneNode:
    """An op that launches work, in the order of the graph."""

    call: OpCall
    stream: int
    """Index into ``Capturing.streams``."""
    dependencies: tuple[int, ...]


class Capturing(CapturedRegion):
    """The capture in progress and the streams that take part in it."""

    def __init__(self) -> None:
        super().__init__()
        self.default: Lane = Lane("default stream")
        self.current: Lane = self.default
        self.capture_id: int | None = None
        """Number of the capture in progress."""
        self.captures = 0
        self.streams: list[Lane] = []
        """Streams of the capture in progress, the capturing one first."""
        self.nodes: list[LaneNode] = []
        """Of the capture in progress, or of the last one."""
        self._joins: list[Finding] = []
        """What to say of each join, if no branch is left."""

    @property
    def capturing(self) -> bool:
        return self.capture_id is not None

    @property
    def current_is_capturing(self) -> bool:
        return self.capturing and self.current.joined == self.capture_id

    def begin(self, lane: Lane, phase: str) -> None:
        """A capture begins on ``lane``."""
        self.captures += 1
        self.capture_id, self.phase = self.captures, phase
        self.streams, self.nodes, self._joins = [lane], [], []
        lane.joined, lane.frontier = self.capture_id, frozenset()

    def end(self) -> None:
        self.capture_id = None

    def wait(self, waiting: Lane, joined: int | None, frontier: Frontier) -> None:
        """``waiting`` is made to wait for work up to ``frontier`` of the capture ``joined``."""
        if not self.capturing:
            return
        if joined != self.capture_id:
            if waiting.joined == self.capture_id:
                self.report(
                    Finding(
                        WAIT_ON_PRECAPTURE_WORK,
                        "the capture was made to wait for work from outside it",
                        here(2),
                        phase=self.phase,
                        fix="record the event, or submit the work, inside the capture; or "
                        "synchronise before the capture begins",
                        evidence=(_ISOLATION,),
                    ),
                    why=_ISOLATION,
                )
            return
        if waiting is self.default:
            self.report(
                Finding(
                    DEFAULT_STREAM_DEPENDENCY,
                    "the default stream was made to wait for a stream that is capturing",
                    here(2),
                    phase=self.phase,
                    fix="use torch.cuda.current_stream(), or a stream of your own",
                    evidence=(_IMPLICIT,),
                ),
                why=_IMPLICIT,
            )
        if waiting.joined != self.capture_id:
            waiting.joined = self.capture_id
            waiting.frontier = frozenset()
            self.streams.append(waiting)
        elif not frontier <= waiting.frontier:
            self._joins.append(
                Finding(
                    CONCURRENCY_LOST_OR_FALSE_DEPENDENCY,
                    f"{waiting.name} waits here for all that came before, and no work of two "
                    "streams is left to run at the same time",
                    here(2),
                    phase=self.phase,
                )
            )
        waiting.frontier |= frontier

    def add_node(self, call: OpCall) -> LaneNode | None:
        """Work for the current stream; None when that takes no part in the capture."""
        lane = self.current
        if lane not in self.streams:
            self._unforked(call, lane)
            return None
        node = LaneNode(call, self.streams.index(lane), tuple(sorted(lane.frontier)))
        lane.frontier = frozenset((len(self.nodes),))
        lane.used = call.chain
        self.nodes.append(node)
        return node

    def _unforked(self, call: OpCall, lane: Lane) -> None:
        zero = lane is self.default
        why = _ZERO if zero else _UNFORKED
        self.report(
            Finding(
                KERNEL_ON_STREAM_ZERO if zero else SIDE_STREAM_NOT_FORKED,
                f"{call.name} runs on {lane.name}, which takes no part in the capture",
                phase=self.phase,
                evidence=(why,),
            ),
            why=why,
            fix="use torch.cuda.current_stream()"
            if zero
            else "before the work: side.wait_stream(torch.cuda.current_stream()); after it: "
            "torch.cuda.current_stream().wait_stream(side)",
        )

    def _before(self, frontier: Frontier) -> set[int]:
        """All nodes that come before the frontier, itself included."""
        reached: set[int] = set()
        waiting = list(frontier)
        while waiting:
            node = waiting.pop()
            if node not in reached:
                reached.add(node)
                waiting.extend(self.nodes[node].dependencies)
        return reached

    def check_joins(self) -> None:
        """At the end of a capture: streams with work that nothing waits for, and forks that came
        to nothing."""
        home, *others = self.streams
        reached = self._before(home.frontier)
        for lane in others:
            if not lane.frontier <= reached:
                self.report(
                    Finding(
                        UNJOINED_SIDE_STREAM,
                        f"{self.phase}: {lane.name} has work that was not joined",
                        frames_of(lane.used or lane.created),
                        phase=self.phase,
                        fix="wait for it before returning: "
                        "torch.cuda.current_stream().wait_stream(side)",
                        evidence=(_UNJOINED,),
                    ),
                    why=_UNJOINED,
                )
        if self.collecting:
            self._lost_concurrency()

    def _lost_concurrency(self) -> None:
        counts = Counter(node.stream for node in self.nodes)
        if sum(count >= _BRANCH for count in counts.values()) < 2 or not self._joins:
            return
        ancestors: list[set[int]] = []
        for index, node in enumerate(self.nodes):
            above: set[int] = set()
            for one in node.dependencies:
                above |= ancestors[one] | {one}
            ancestors.append(above)
            if len(above) < index:
                # Something earlier is neither before nor after: two branches, as they were meant.
                return
        self.findings.add(self._joins[0])


@contextlib.contextmanager
def capturing(device: Capturing, lane: Lane, phase: str) -> Iterator[None]:
    """One capture on ``lane``, which is the current stream meanwhile."""
    device.begin(lane, phase)
    before, device.current = device.current, lane
    try:
        yield
    finally:
        device.current = before
        device.end()
