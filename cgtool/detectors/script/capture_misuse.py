"""Captures that hold nothing, that something else disturbs, or that hold what a graph cannot."""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple

import torch

from cgtool.detectors.capture_errors import is_refusal
from cgtool.detectors.generator_states import GeneratorStates
from cgtool.detectors.preflight import disabled_caching
from cgtool.detectors.reporting import Detector, is_reported, mark_reported
from cgtool.detectors.stream_races import STREAM_RACE_IN_CAPTURE, StreamRaces, accesses, other_line
from cgtool.findings import code
from cgtool.model.finding import NOTE, WARNING
from cgtool.observe.frames import exception_frames, frames_of
from cgtool.observe.ops import OpCall
from cgtool.observe.script import events
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.tensors import tensors_in
from cgtool.program.boundary import first_line
from cgtool.torch_compat.private import pins_memory
from cgtool.torch_compat.storages import StorageRef

CAPTURE_WAITS_FOR_NCCL = code("capture-waits-for-nccl")
DATALOADER_PIN_THREAD = code("dataloader-pin-thread")
EMPTY_GRAPH = code("empty-graph")
FINALIZER_IN_CAPTURE = code("finalizer-in-capture")
FIRST_COMPILE_IN_CAPTURE = code("first-compile-in-capture")
HOST_CALLBACK_DEADLOCK = code("host-callback-deadlock")
MIXED_EAGER_WORK_DURING_CAPTURE = code("mixed-eager-work-during-capture")
NCCL_DESTROY_BEFORE_GRAPH = code("nccl-destroy-before-graph")
OTHER_THREAD_CUDA_CALL = code("other-thread-cuda-call")
RELAXED_MODE_HIDES_BUGS = code("relaxed-mode-hides-bugs")
RNG_SEQUENCE_DIFFERS_FROM_EAGER = code("rng-sequence-differs-from-eager")


class Misuse(Detector):
    """Settings and modes of a capture, and captures of nothing."""

    phase = "capture"

    def start(self) -> None:
        self._empty: WatchedGraph | None = None

    def on_warned(self, event: events.Warned) -> None:
        if "CUDA Graph is empty" in event.text:
            self._empty = self.script.capture

    def on_capture_began(self, event: events.CaptureBegan) -> None:
        graph = event.graph
        for finding in disabled_caching():
            self.report(finding.code, finding.reason, evidence=finding.evidence, phase="capture")
        if graph.mode == "global" and any(map(pins_memory, threading.enumerate())):
            self.report(
                DATALOADER_PIN_THREAD,
                "a DataLoader with pin_memory=True has a thread that calls CUDA, which can end "
                "this capture at any time",
            )

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        graph = event.graph
        if graph.mode == "relaxed":
            self.report(
                RELAXED_MODE_HIDES_BUGS,
                'capture_error_mode="relaxed": calls that a capture does not permit run without an '
                "error",
                graph.frames,
            )
        if graph is self._empty:
            # With a pool of the program's, such a graph keeps the pool.
            without_ops = WARNING if graph.own_pool else NOTE
            self.report(
                EMPTY_GRAPH,
                "the graph is empty: no op of the capture ran on its device and streams"
                if graph.ops
                else "the graph is empty: the capture ran no op",
                graph.frames,
                severity=None if graph.ops else without_ops,
            )


def other_thread(name: str) -> str:
    """The reason of a finding about a call that CUDA has refused in another thread."""
    return (
        f"thread `{name}` makes a call that no thread may make while another one captures: it ends "
        "the capture"
    )


class Disturbances(Detector):
    """Events that disturb a capture, or do not belong in one: a graph that dies, another thread, a
    host callback, compilation."""

    phase = "capture"

    def on_graph_dropped(self, event: events.GraphDropped) -> None:
        if self.script.capture is not None and event.graph is not self.script.capture:
            self.report(
                FINALIZER_IN_CAPTURE,
                f"{event.graph.name} is destroyed while another graph is captured",
                graphs=(event.graph,),
            )

    def on_thread_worked(self, event: events.ThreadWorked) -> None:
        if event.graph.mode == "global":
            self.report(
                OTHER_THREAD_CUDA_CALL,
                f"thread `{event.thread}` calls CUDA while another thread captures: if the call "
                "waits, copies or allocates, it ends the capture",
            )
        else:
            self.report(
                MIXED_EAGER_WORK_DURING_CAPTURE,
                f"thread `{event.thread}` runs work on the device while another thread captures",
            )

    def on_thread_raised(self, event: events.ThreadRaised) -> None:
        is_known = is_reported(event.error) or pins_memory(threading.current_thread())
        if is_known or not is_refusal(event.error):
            return
        mark_reported(event.error)
        event.graph.disturbed = True
        place = exception_frames(event.error) or self.script.place()
        known = ((finding.code, finding.frames[:1]) for finding in self.findings)
        if (OTHER_THREAD_CUDA_CALL, place[:1]) not in known:
            self.report(
                OTHER_THREAD_CUDA_CALL,
                other_thread(event.thread),
                place,
                evidence=(f"{type(event.error).__name__}: {first_line(event.error)}",),
            )

    def on_host_callback_added(self, _event: events.HostCallbackAdded) -> None:
        self.report(
            HOST_CALLBACK_DEADLOCK, "the graph gets a node that calls a function on the host"
        )

    def on_compiled_in_capture(self, _event: events.CompiledInCapture) -> None:
        self.report(
            FIRST_COMPILE_IN_CAPTURE,
            "torch.compile compiles during the capture, because this function was not called "
            "before",
        )


class Races(Detector):
    """Ops of one capture that use the same memory on streams that do not wait for each other."""

    phase = "capture"

    def on_capture_began(self, _event: events.CaptureBegan) -> None:
        self._races: StreamRaces[_Captured] = StreamRaces()
        self._deferred: dict[int, StorageRef] = {}
        """Storages of which `record_stream` was called, by key."""

    def on_stream_recorded(self, event: events.StreamRecorded) -> None:
        reference = StorageRef(event.tensor)
        self._deferred[reference.key] = reference

    def on_op_captured(self, event: events.OpCaptured) -> None:
        op, order, stream = event.op, event.graph.order, event.stream
        if op.call is None or op.call.autograd_node is not None:
            # Autograd's engine makes the streams of a backward wait for each other.
            return
        used = accesses(op.func, op.name, op.args, op.kwargs, event.result)
        if not any(used):
            return
        node = _Captured(stream, event.tick, op.call)

        def is_before(other: _Captured) -> bool:
            return order.before(other.stream, other.tick, stream)

        def is_free(storage: StorageRef) -> bool:
            return storage.key not in self._deferred and self.script.device.is_dead(storage)

        for race in self._races.use(node, stream, used, is_before, is_free):
            line = other_line(frames_of(race.node.call.chain))
            self.report(STREAM_RACE_IN_CAPTURE, race.reason, evidence=line, fix=race.fix)


class _Captured(NamedTuple):
    """An op of a capture, and where it is in its stream."""

    stream: int
    tick: int
    call: OpCall


class Collectives(Detector):
    """Collectives that are outstanding as a capture begins, and process groups that end too early.

    Which collective is outstanding follows from the order of calls: whether one has ended depends
    on the other ranks, and ``is_completed()`` is not permitted during a capture.
    """

    def start(self) -> None:
        self._works: dict[int, weakref.ref[Any]] = {}
        """Collectives that were started and that no stream has waited for."""

    def on_collective_started(self, event: events.CollectiveStarted) -> None:
        self._works[id(event.work)] = weakref.ref(event.work)

    def on_collective_done(self, event: events.CollectiveDone) -> None:
        self._works.pop(id(event.work), None)

    def on_host_waited(self, event: events.HostWaited) -> None:
        if event.call == "torch.cuda.synchronize":
            self._works.clear()

    def on_capture_began(self, _event: events.CaptureBegan) -> None:
        # Nothing can wait for a work that no longer has references.
        if any(reference() is not None for reference in self._works.values()):
            self.report(
                CAPTURE_WAITS_FOR_NCCL,
                "the capture begins while a collective is outstanding",
                phase="capture",
            )
            self._works.clear()

    def on_process_group_destroyed(self, _event: events.ProcessGroupDestroyed) -> None:
        if any(graph.has_op("c10d::") for graph in self.script.replayable()):
            self.report(
                NCCL_DESTROY_BEFORE_GRAPH,
                "the process group is destroyed while a graph that captured a collective can still "
                "be replayed",
            )


class Randomness(Detector):
    """A graph that draws random numbers after it has set the generator's state, or that is compared
    with eager without one seed for both."""

    phase = "capture"

    def start(self) -> None:
        device = self.script.device
        self._states = GeneratorStates(device.generator_state, relative=not device.simulated)
        self._random: set[int] = set()
        """Numbers of the graphs that draw."""
        self._seeds = 0
        """Since the last captured draw."""

    def on_capture_began(self, _event: events.CaptureBegan) -> None:
        self._states.begin()

    def on_capture_ends(self, _event: events.CaptureEnds) -> None:
        self.findings.extend(self._states.end())

    def on_seeded(self, _event: events.Seeded) -> None:
        self._seeds += 1

    def on_op_captured(self, event: events.OpCaptured) -> None:
        if torch.Tag.nondeterministic_seeded in getattr(event.op.func, "tags", ()):
            self._random.add(event.graph.number)
            self._seeds = 0

    def on_eager_op(self, event: events.EagerOp) -> None:
        op = event.op
        if not op.name.startswith(("aten::equal", "aten::allclose", "aten::isclose")):
            return
        allocators = [
            self.script.buffers.allocator_of(tensor) for tensor in tensors_in(op.args[:2])
        ]
        graphs = [graph for graph in allocators if graph is not None]
        if len(allocators) != 2 or len(graphs) != 1 or graphs[0].number not in self._random:
            return
        if graphs[0].replays and self._seeds < 2:
            self.report(
                RNG_SEQUENCE_DIFFERS_FROM_EAGER,
                "the output of a graph that draws random numbers is compared with eager, and the "
                "two did not start from the same seed",
                phase="script",
            )
