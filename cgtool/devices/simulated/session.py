"""A workload on the simulated device: warmed up, recorded, replayed, and compared with eager."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from msgspec.structs import replace

from cgtool.detectors.capture_errors import explain
from cgtool.detectors.generator_states import RNG_STATE_SET_IN_CAPTURE
from cgtool.detectors.streams import capturing
from cgtool.devices.device import (
    CaptureWithDot,
    Device,
    Followed,
    PhaseGraph,
    Session,
    VerifyTarget,
    quiet,
)
from cgtool.devices.simulated import stale_nodes
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.devices.simulated.graph import CaptureRecorder, RandomStates, SimulatedGraph
from cgtool.devices.simulated.memory import LifetimeRecorder
from cgtool.devices.simulated.stepping import SimulatedStepper
from cgtool.devices.stepping import Stepper
from cgtool.model.capture import Capture
from cgtool.model.failure import CgtoolError
from cgtool.model.finding import Finding
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.effects import effect_of
from cgtool.observe.ops import Record
from cgtool.observe.tensors import strided_parts
from cgtool.program.boundary import user_errors
from cgtool.program.description import labels_of
from cgtool.program.load import seed_all
from cgtool.program.phases import Phase, roots_of, warmup_iters
from cgtool.program.workload import Workload
from cgtool.torch_compat.private import schema_of
from cgtool.torch_compat.storages import StorageRef


@dataclass
class SimulatedPhaseGraph(PhaseGraph):
    graph: SimulatedGraph


@dataclass(kw_only=True)
class SimulatedSession(Session[SimulatedPhaseGraph]):
    """Everything that one attempt on the simulated device keeps alive."""

    model: DeviceModel
    record: Record = field(default_factory=Record)
    """One record for all captures: a backward op finds its forward call in it."""
    accesses: AccessLog = field(default_factory=AccessLog)
    lifetimes: LifetimeRecorder = field(init=False)
    """Lifetimes of storages in the last warm-up iteration, if they were followed."""

    def __post_init__(self) -> None:
        self.lifetimes = LifetimeRecorder({}, Annotations(), self.model)
        stale_nodes.mark_stale(self.workload, self.model)

    def warm_up_following(self, progress: Progress) -> None:
        """Warm up, and follow lifetimes in the last iteration."""
        seed_all(self.options.seed)
        self.warmup_iters, _ = warmup_iters(self.workload, self.options)
        begin = time.perf_counter_ns()
        self.run_eagerly(max(0, self.warmup_iters - 1), progress, explain)
        gc.collect()
        self.follow_lifetimes()
        self.warmup_ns = time.perf_counter_ns() - begin

    def follow_lifetimes(self) -> None:
        """Run the last warm-up iteration in the order of the capture, and record its allocations.
        Allocations that are alive at the end get a label: an output, a gradient."""
        with watch_annotations(self.options.annotations) as annotations:
            recorder = LifetimeRecorder(roots_of(self.workload), annotations, self.model)
            for phase in self.phases():
                with user_errors(phase.part, "warm-up", explain), recorder:
                    phase.result = phase.work()
                recorder.sweep()
                recorder.graph += 1
        labels = labels_of(self)
        for life in recorder.lives:
            if life.died is None:
                life.label = labels.get(life.address)
        self.lifetimes = recorder

    def new_graph(self, phase: Phase) -> SimulatedPhaseGraph:
        return SimulatedPhaseGraph(
            phase.name, phase.kind, phase.index, phase.part, SimulatedGraph()
        )

    @contextlib.contextmanager
    def capturing(self, graph: SimulatedPhaseGraph) -> Iterator[None]:
        mode = self.options.capture_error_mode
        entry = self.workload.frame if graph.phase == "backward" else None
        with (
            capturing(self.model, self.stream, self.activity(graph.name), mode),
            stale_nodes.refused(self.model, entry),
        ):
            yield
            self.model.check_joins()
        graph.graph.stream_names = [stream.name for stream in self.model.streams]

    def capture(self, progress: Progress = quiet) -> None:
        """Record every graph of the workload. Raises CgtoolError for what the user's code
        raises, with what one more run that goes on after a refusal has found."""
        self.stream = self.model.stream_class(name="capture stream")
        states: RandomStates = {}

        @contextlib.contextmanager
        def observe(graph: SimulatedPhaseGraph) -> Iterator[CaptureRecorder]:
            roots = roots_of(self.workload)
            recorder = CaptureRecorder(
                roots, annotations, self.model, states, self.accesses, graph.graph
            )
            recorder.record = self.record
            yield recorder

        with watch_annotations(self.options.annotations) as annotations:
            try:
                self.capture_phases(observe, progress)
            except CgtoolError as error:
                failure, model = error.failure, self.model
                if model.collecting or failure.uncertain or not failure.findings:
                    raise
                collect(self.workload, self.options, model)
                known = {(each.code, each.frames[:1]) for each in failure.findings}
                others = [f for f in model.findings if (f.code, f.frames[:1]) not in known]
                failure = replace(failure, findings=(*failure.findings, *others))
                raise CgtoolError(failure) from error.__cause__

    def is_empty(self) -> bool:
        return not any(graph.graph.nodes for graph in self.graphs)

    def why_empty(self) -> tuple[str, str]:
        if any(graph.graph.host_ops for graph in self.graphs):
            return (
                "every op ran on CPU tensors, which are not part of a graph",
                "put tensors and modules on the device that the factory is given",
            )
        return (
            "the callable ran no op that launches work: it returned a cached result or an input",
            "check that every call computes its result",
        )


def collect(workload: Workload, options: CaptureOptions, model: DeviceModel) -> None:
    """Capture once more, going on after what would end the capture; ``model.findings`` has all."""
    from cgtool.detectors.check_entry import stepping_anyway

    model.collecting = True
    with contextlib.suppress(CgtoolError, RuntimeError), stepping_anyway(model):
        SimulatedSession(workload, options, model=model).capture()
    model.collecting = False


def prepare(
    model: DeviceModel, workload: Workload, options: CaptureOptions, progress: Progress
) -> SimulatedSession:
    """Warm up, follow lifetimes, capture: a session that can replay. Raises CgtoolError."""
    session = SimulatedSession(workload, options, model=model)
    session.warm_up_following(progress)
    session.capture(progress)
    session.require_nodes()
    return session


class SimulatedVerifyTarget(VerifyTarget):
    """The session in which simulated replays are compared with eager."""

    session: SimulatedSession

    def __init__(
        self,
        device: Device,
        session: SimulatedSession,
        describe: Callable[[SimulatedSession], Capture],
    ) -> None:
        super().__init__(device, session)
        self._describe = describe
        self._written: set[int] = set()
        """Addresses of the storages that captured ops made, which a replay writes again."""

    def warm_up(self, progress: Progress) -> None:
        if self.follows_memory:
            self.session.warm_up_following(progress)
        else:
            super().warm_up(progress)

    def capture(self, progress: Progress) -> None:
        model = self.session.model
        model.follows_generator = True
        self.session.capture(progress)
        model.follows_generator = False
        for graph in self.session.graphs:
            for step in graph.graph.steps:
                if schema_of(step.func) is not None and not effect_of(step.func).writes:
                    self._written |= {
                        StorageRef(part).address
                        for result in step.results
                        for _, part in strided_parts(result)
                    }

    def uncaptured_work(self, differs: bool) -> list[Finding]:
        """Random states that the captured code sets: a simulated replay draws as eager does."""
        findings = self.session.model.findings
        return [each for each in findings if each.code == RNG_STATE_SET_IN_CAPTURE]

    def _make_steppers(self) -> list[Stepper]:
        return [SimulatedStepper(graph.graph) for graph in self.session.graphs]

    def followed(self) -> Followed:
        return Followed(self.session.record, self.session, self.steppers)

    def described(self) -> CaptureWithDot:
        return self._describe(self.session), {}

    def in_graph_memory(self, tensor: torch.Tensor) -> bool:
        return any(StorageRef(part).address in self._written for _, part in strided_parts(tensor))
