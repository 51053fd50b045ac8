"""``cgtool check`` on a GPU: a dry run under the rules of capture, then a capture.

The dry run is eager: the code goes on after a call that a capture would refuse, so one run shows
every hazard. PyTorch and the driver report what the rules do not cover: PyTorch's
synchronization debug mode warns where the host waits, and at the end the workload is captured.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Container, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cgtool.analysis.graph.places import frames_of
from cgtool.detectors.check_entry import check_entry, findings_of_graph
from cgtool.detectors.function_rules import note_pinning, refuse_index
from cgtool.detectors.generator_states import sets_other_seed
from cgtool.detectors.refused_ops import run_checked
from cgtool.detectors.reporting import CapturedRegion
from cgtool.detectors.streams import NOT_CAPTURED, CaptureInProgress, Frontier, Lane
from cgtool.detectors.streams import capturing as dry_capture
from cgtool.devices.cuda.capture import capture, open_session
from cgtool.devices.device import CaptureWithDot, Checked, Device, PhaseGraph, Session
from cgtool.findings import code
from cgtool.model.capture import Capture, Frame
from cgtool.model.failure import CgtoolError
from cgtool.model.finding import Code, Finding
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.annotations import Annotations
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.effects import effect_of, launches
from cgtool.observe.frames import call_user, chain_of, here, is_subscript
from cgtool.observe.ops import OpCall, OpRecorder, Record
from cgtool.observe.tensors import tensors_in
from cgtool.program.boundary import is_consequence
from cgtool.program.load import seed_all
from cgtool.program.phases import Phase, roots_of
from cgtool.program.workload import Workload
from cgtool.torch_compat.allocator import lists_memory
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import CAPTURING_QUERIES, storage_address
from cgtool.torch_compat.streams import Event, Stream, handle_of

EVENT_OR_STREAM_QUERY = code("event-or-stream-query")
HIDDEN_SYNC_IN_STOCK_MODULE = code("hidden-sync-in-stock-module")
MEM_ALLOC_NODES = code("mem-alloc-nodes")
RNG_STATE_ACCESS = code("rng-state-access")


class Dry(CaptureInProgress):
    """A model of the capture, kept while the code runs eagerly on real streams."""

    def __init__(self) -> None:
        super().__init__()
        self._lanes: dict[int, Lane] = {0: self.default}
        self.in_wait_stream = False
        """``wait_stream`` waits for an event of its own, which was already recorded."""
        self.may_wait = True
        """No rule has reported the current op."""
        self.allocates = not lists_memory()
        """The next op that allocates is reported: under cudaMallocAsync that makes a node."""

    def generator_state(self) -> torch.Tensor:
        return torch.cuda.default_generators[torch.cuda.current_device()].get_state()

    def lane(self, stream: Any) -> Lane:
        """The model of a real stream."""
        handle = handle_of(stream)
        lane = self._lanes.get(handle)
        if lane is None:
            name = f"stream {len(self._lanes)}"
            lane = self._lanes[handle] = Lane(name, chain_of(sys._getframe(1)))
        return lane

    def follow(self) -> None:
        """Make PyTorch's current stream the current stream of the model."""
        self.current = self.lane(torch.cuda.current_stream())

    def reported(self, frames: tuple[Frame, ...]) -> bool:
        """True if a rule has already reported this line in this phase."""
        return any(
            finding.frames[:1] == frames[:1] and finding.phase == self.phase
            for finding in self.findings
        )


class _Recorder(OpRecorder):
    """Checks every op against the rules, and adds a node for each that launches work."""

    def __init__(self, roots: Any, annotations: Annotations, dry: Dry) -> None:
        super().__init__(roots, annotations)
        self.dry = dry

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        dry = self.dry
        tensors = list(tensors_in((args, kwargs)))
        dry.call, dry.record = call, self.record
        dry.on_host = bool(tensors) and not any(tensor.is_cuda for tensor in tensors)
        known = len(dry.findings)

        def run() -> Any:
            dry.may_wait = len(dry.findings) == known
            return self.run(func, args, kwargs)

        try:
            if kwargs.get("pin_memory"):
                note_pinning(dry, call.name)
            output = run_checked(dry, call, func, args, kwargs, run)
            results = list(tensors_in(output))
            effect = effect_of(func)
            touched = results or (tensors if effect.writes else [])
            on_gpu = any(tensor.is_cuda for tensor in touched)
            if on_gpu and not effect.view and launches(call.name, touched):
                dry.follow()
                if dry.add_node(call) is not None:
                    dry.note_memory(func, args, kwargs, output)
                if dry.allocates and _makes(results, tensors):
                    dry.allocates = False
                    dry.note(
                        MEM_ALLOC_NODES,
                        "the allocator is cudaMallocAsync: the allocation of this op becomes a "
                        "node, as does that of every op after it",
                    )
            return output
        finally:
            dry.call, dry.on_host = None, False


def _makes(results: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> bool:
    """True if a result has its own memory."""

    def storages(tensors: Sequence[torch.Tensor]) -> set[int]:
        return {storage_address(tensor) for tensor in tensors if tensor.layout == torch.strided}

    return not storages(results) <= storages(given)


def _watched(dry: Dry) -> list[tuple[Any, str, Callable[..., Any]]]:
    """The calls of ``torch.cuda`` that affect a capture: (owner, name, wrapper)."""
    marks: dict[int, tuple[Any, int | None, Frontier]] = {}
    """By id: the event, and the capture and the nodes that a wait on it waits for."""

    def refused(code: Code, name: str) -> Callable[..., Any]:
        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            dry.refuse(code, name)
            return call_user(original, *args, **kwargs)

        return call

    def synchronize(name: str) -> Callable[..., Any]:
        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            dry.refuse_synchronize(name)
            return call_user(original, *args, **kwargs)

        return call

    def seed(original: Any, number: int) -> Any:
        if sets_other_seed(number):
            dry.refuse(RNG_STATE_ACCESS, f"torch.cuda.{original.__name__}()")
        return call_user(original, number)

    def wait_stream(original: Any, stream: Any, other: Any) -> Any:
        lane = dry.lane(other)
        dry.wait(dry.lane(stream), lane.joined, lane.frontier)
        dry.in_wait_stream = True
        try:
            return original(stream, other)
        finally:
            dry.in_wait_stream = False

    def note_wait(stream: Any, event: Any) -> None:
        if id(event) in marks and not dry.in_wait_stream:
            dry.wait(dry.lane(stream), *marks[id(event)][1:])

    def wait_event(original: Any, stream: Any, event: Any) -> Any:
        note_wait(stream, event)
        return original(stream, event)

    def record(original: Any, event: Any, stream: Any = None) -> Any:
        lane = dry.lane(stream or torch.cuda.current_stream())
        marks[id(event)] = event, lane.joined, lane.frontier
        return original(event, stream) if stream is not None else original(event)

    def wait(original: Any, event: Any, stream: Any = None) -> Any:
        note_wait(stream or torch.cuda.current_stream(), event)
        return original(event, stream) if stream is not None else original(event)

    def is_capturing(_original: Any) -> bool:
        if not dry.capturing:
            return False
        dry.answer_capturing()
        return True

    def record_stream(original: Any, tensor: Any, stream: Any) -> Any:
        dry.note_record_stream(tensor)
        return original(tensor, stream)

    cuda, accelerator = torch.cuda, torch.accelerator
    of_streams = {
        "synchronize": synchronize("Stream.synchronize()"),
        "query": refused(EVENT_OR_STREAM_QUERY, "Stream.query()"),
        "wait_stream": wait_stream,
        "wait_event": wait_event,
    }
    of_events = {
        "synchronize": synchronize("Event.synchronize()"),
        "query": refused(EVENT_OR_STREAM_QUERY, "Event.query()"),
        "record": record,
        "wait": wait,
    }
    return [
        *((owner, *item) for owner in (cuda.Stream, Stream) for item in of_streams.items()),
        *((owner, *item) for owner in (cuda.Event, Event) for item in of_events.items()),
        (cuda, "synchronize", synchronize("torch.cuda.synchronize()")),
        (
            accelerator,
            "synchronize",
            synchronize("torch.accelerator.synchronize()"),
        ),
        *((*point, is_capturing) for point in CAPTURING_QUERIES),
        (cuda, "manual_seed", seed),
        (cuda, "manual_seed_all", seed),
        (cuda, "seed", refused(RNG_STATE_ACCESS, "torch.cuda.seed()")),
        (torch.Tensor, "record_stream", record_stream),
    ]


@contextlib.contextmanager
def _host_waits(dry: Dry) -> Iterator[None]:
    """Report what PyTorch's synchronization debug mode warns about and no rule has reported."""

    def show_warning(original: Any, message: Any, *args: Any, **kwargs: Any) -> None:
        if "called a synchronizing CUDA operation" not in str(message):
            original(message, *args, **kwargs)
        elif dry.capturing and dry.may_wait and (frames := here(3)) and not dry.reported(frames):
            if dry.call is None and is_subscript(chain_of(sys._getframe())[0]):
                # `x[list]` copies the list before it calls an op.
                refuse_index(dry)
                return
            name = dry.call.name if dry.call is not None else "this call"
            dry.refuse(HIDDEN_SYNC_IN_STOCK_MODULE, f"{name}, which makes the host wait,")

    with warnings.catch_warnings(), Patches() as patches:
        warnings.filterwarnings("always", message=".*synchronizing CUDA operation.*")
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        patches.wrap(warnings, "showwarning", show_warning)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def check(
    device: Device,
    workload: Workload,
    options: CaptureOptions,
    progress: Progress,
    dry_run_only: bool,
) -> tuple[Checked, CaptureWithDot | None]:
    """The dry run, and the capture when it succeeded and is not left out.

    Raises CgtoolError when the code fails in eager mode already, for a reason that has no code.
    """
    dry = Dry()
    open_session(device, workload, options)
    seed_all(options.seed)
    side = torch.cuda.Stream()
    run = partial(dry_run, dry, workload, side, progress)
    with watch_annotations(options.annotations) as annotations, device.eager_stream(side):
        looked = check_entry(
            dry, workload, options, progress, annotations, run, later=not dry_run_only
        )
    if dry_run_only:
        return (dry.findings.all(), looked), None
    captured: CaptureWithDot | None = None
    if not lists_memory():
        # Under cudaMallocAsync PyTorch may end the process when tensors of a graph are freed.
        looked = (*looked, "no capture: the allocator is cudaMallocAsync")
        return (dry.findings.all(), looked), None
    try:
        captured = capture(device, workload, options, progress)
        looked = (*looked, "a capture")
        return (not_refuted(dry, captured[0]), looked), captured
    except CgtoolError as error:
        entries = {part.frames[:1] for part in workload.parts}
        for finding in error.failure.findings:
            if not any(
                is_same_cause(finding, known, dry.refusals, entries) for known in dry.findings
            ):
                dry.findings.add(finding)
        if not len(dry.findings):
            raise
        looked = (*looked, f"a capture, which failed: {error.failure.message}")
    return (dry.findings.all(), looked), captured


def not_refuted(dry: CapturedRegion, captured: Capture) -> tuple[Finding, ...]:
    """The findings of a dry run that a successful capture leaves: what CUDA has captured, it does
    not refuse, and work that became nodes is part of the capture."""
    nodes = (node for graph in captured.graphs for node in graph.nodes)
    chains = {frames_of(captured, node.origin) for node in nodes}
    return tuple(
        finding
        for finding in dry.findings
        if finding.code not in dry.refusals
        or (finding.code in NOT_CAPTURED and finding.frames not in chains)
    )


def is_same_cause(
    failed: Finding, known: Finding, refusals: Container[Code], entries: Set[tuple[Frame, ...]]
) -> bool:
    """Whether what ended a capture is what the dry run has reported already.

    It may have reported the line under another code. CUDA's error may come late, at a line that did
    nothing wrong, or in a backward, which has only that of the entry point (``entries``): then any
    refused call (``refusals``) of the phase is its cause.
    """
    place = failed.frames[:1]
    if failed.code == known.code or (place and known.frames[:1] == place):
        return True
    is_elsewhere = place in entries or any(map(is_consequence, failed.evidence))
    # What was not captured fails where something captured waits for it, in a later phase too.
    phase = (failed.phase or "").removeprefix("capture ")
    is_in_phase = known.phase == phase or known.code in NOT_CAPTURED
    return is_elsewhere and known.code in refusals and is_in_phase


@dataclass(kw_only=True)
class DrySession(Session[PhaseGraph]):
    """Runs every phase eagerly under the rules of capture. Its graphs are empty."""

    dry: Dry
    stream: Any

    def new_graph(self, phase: Phase) -> PhaseGraph:
        return PhaseGraph(phase.name, phase.kind, phase.index, phase.part, graph=None)

    @contextlib.contextmanager
    def capturing(self, graph: PhaseGraph) -> Iterator[None]:
        mode = self.options.capture_error_mode
        with dry_capture(self.dry, self.dry.lane(self.stream), graph.name, mode):
            yield
            self.dry.follow()
            self.dry.check_joins()

    def activity(self, name: str) -> str:
        return name

    def is_empty(self) -> bool:
        return True


def dry_run(
    dry: Dry,
    workload: Workload,
    stream: Any,
    progress: Progress,
    annotations: Annotations,
    options: CaptureOptions,
) -> Sequence[OpCall]:
    """All calls of one eager iteration; rules that they break are reported to ``dry``."""
    record = Record()

    @contextlib.contextmanager
    def observe(_graph: PhaseGraph) -> Iterator[_Recorder]:
        recorder = _Recorder(roots_of(workload), annotations, dry)
        recorder.record = record
        yield recorder
        for finding in findings_of_graph(dry.nodes, record):
            dry.findings.add(finding)

    session = DrySession(workload, options, dry=dry, stream=stream)
    with Patches() as patches, _host_waits(dry):
        for owner, name, wrapper in _watched(dry):
            patches.wrap(owner, name, wrapper)
        session.capture_phases(observe, lambda name: progress(f"dry run of {name}"))
    torch.cuda.synchronize()
    return record.calls
