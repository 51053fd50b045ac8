"""A device, a workload's session on it, the one loop that captures, and what verification needs.

``cgtool.devices.cuda`` and ``cgtool.devices.simulated`` implement these classes, so that a job does
not ask which device it has. Every command that captures goes through ``Session.capture_phases``: a
plain capture, one with a recorder inside, the dry run of ``check``, the captures of ``bench
--against`` and those of ``verify``.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from cgtool.detectors.capture_errors import explain
from cgtool.devices.stepping import Stepper
from cgtool.findings import code
from cgtool.model import clock
from cgtool.model.capture import Capture, Caveat, Environment
from cgtool.model.failure import machine, user_code
from cgtool.model.finding import Finding
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.ops import OpRecorder, Record
from cgtool.observe.tensors import key_of, on_host, tensors_in
from cgtool.program.boundary import user_errors
from cgtool.program.description import named_tensors
from cgtool.program.load import seed_all
from cgtool.program.objects import short, type_name
from cgtool.program.phases import Phase, WorkloadRun, roots_of, warmup_iters
from cgtool.program.reach import reach
from cgtool.program.workload import Workload, WorkloadPart, inputs_of

EMPTY_GRAPH = code("empty-graph")

CaptureWithDot = tuple[Capture, dict[str, str]]
"""A capture, and the driver's DOT texts by part name."""
Checked = tuple[tuple[Finding, ...], tuple[str, ...]]
"""All findings, and what was checked."""


def quiet(_text: str) -> None:
    """The ``Progress`` that reports nothing."""


class Device(ABC):
    """A GPU, or the model of one on CPU tensors."""

    factory_device: str
    """The argument ``device`` of a factory."""
    simulated_because: str | None = None
    """Why the device is simulated; None for a GPU."""

    @property
    @abstractmethod
    def index(self) -> int:
        """CUDA's number of the device."""

    def notes(self) -> tuple[Caveat, ...]:
        """Limits of the answers of this device, once the user's code has run."""
        return ()

    def require_gpu(self, command: str, fix: str | None = None) -> None:
        """Raises CgtoolError (exit 3) on the simulated device, which has no times."""
        if self.simulated_because is not None:
            raise machine(f"{command} needs a GPU ({self.simulated_because})", fix=fix)

    def active(self) -> AbstractContextManager[object]:
        """``torch.cuda`` is this device while entered; to be entered before the user's file is
        loaded."""
        return contextlib.nullcontext()

    def observable(self) -> AbstractContextManager[object]:
        """While entered, streams and threads that the user's file makes can be observed later;
        to be entered before it is loaded."""
        return contextlib.nullcontext()

    @abstractmethod
    def capture(
        self, workload: Workload, options: CaptureOptions, progress: Progress
    ) -> CaptureWithDot:
        """Capture a workload. Raises CgtoolError when the user's code cannot be captured."""

    @abstractmethod
    def check(
        self, workload: Workload, options: CaptureOptions, progress: Progress, dry_run_only: bool
    ) -> tuple[Checked, CaptureWithDot | None]:
        """Findings on a workload that would be captured, and the capture if it succeeded. With
        ``dry_run_only`` the code does not run from later host state, nor is captured on a GPU.

        Raises CgtoolError when the code fails in eager mode already.
        """

    @abstractmethod
    def check_script(self, path: str, arguments: tuple[str, ...], progress: Progress) -> Checked:
        """Run a script that captures and replays graphs itself, under observation; it is not
        ``active`` meanwhile. Raises CgtoolError for what the script raises."""

    @abstractmethod
    def verify_target(self, workload: Workload, options: CaptureOptions) -> VerifyTarget:
        """The session in which replays of a workload are compared with eager."""

    @abstractmethod
    def environment(self) -> Environment:
        """The device, and the software that drives it."""

    @abstractmethod
    def eager_stream(self, stream: Any = None) -> AbstractContextManager[object]:
        """Eager iterations run on ``stream``, or on one of their own. Not on the default stream: a
        capture may not wait for work on that."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all submitted work. Raises RuntimeError for the errors of that work."""

    def get_rng_state(self) -> list[torch.Tensor]:
        """The states of the host's generator and, if it has one, of the device's."""
        return [torch.get_rng_state()]

    def set_rng_state(self, states: list[torch.Tensor]) -> None:
        """Restore what ``get_rng_state`` returned."""
        torch.set_rng_state(states[0])

    @abstractmethod
    def is_host_work(self, values: Any) -> bool:
        """True when the op that runs now, and made or was given ``values``, is not work for the
        device."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Memory of the device that nobody uses."""

    @abstractmethod
    def overwrite_free_memory(self, byte: int = 0xFF) -> None:
        """Write a byte to all device memory that the allocator holds and no tensor uses. 0xFF is
        NaN in every floating-point type, -1 in every signed one."""


@dataclass
class PhaseGraph:
    """One phase of a workload and the graph that it was captured into."""

    name: str
    phase: str
    callable: int
    part: WorkloadPart
    """These four as in ``Phase``."""
    graph: Any
    """An object with ``replay()``."""
    capture_ns: int = field(default=0, kw_only=True)
    """Host time from the begin of the capture to its end."""


GraphT = TypeVar("GraphT", bound=PhaseGraph)
Recorder = AbstractContextManager[object]


def unobserved(_graph: PhaseGraph) -> AbstractContextManager[Recorder]:
    """Capture as a user's program does."""
    return contextlib.nullcontext(contextlib.nullcontext())


@dataclass
class Session(WorkloadRun, ABC, Generic[GraphT]):
    """A workload on a device: its graphs, and the tensors that they replay on."""

    graphs: list[GraphT] = field(default_factory=list)
    """In the order of capture, which is the order of replay."""
    results: dict[int, Any] = field(default_factory=dict)
    """Results of each callable, tensors or not; kept alive, as a user would."""
    warmup_iters: int = 0
    warmup_ns: int = 0
    stream: Any = field(init=False)
    """The capturing stream."""

    def warm_up(self, progress: Progress) -> None:
        """Seed, and run eager iterations. Raises CgtoolError for what the user's code raises."""
        seed_all(self.options.seed)
        self.warmup_iters, _ = warmup_iters(self.workload, self.options)
        self.run_eagerly(self.warmup_iters, progress, explain)

    @abstractmethod
    def new_graph(self, phase: Phase) -> GraphT:
        """An empty graph for a phase; the device is idle on return."""

    @abstractmethod
    def capturing(self, graph: GraphT) -> AbstractContextManager[object]:
        """Work that is submitted inside becomes nodes of ``graph``."""

    @abstractmethod
    def is_empty(self) -> bool:
        """True when no graph has a node."""

    def why_empty(self) -> tuple[str, str]:
        """Why no graph has a node, and how to fix it."""
        return (
            "no work reached the capturing stream: the callable ran on the CPU, returned a cached "
            "result, or launched on another stream or device",
            "check the device of the model and of its inputs, and that every call computes its "
            "result",
        )

    def computes_nothing(self) -> bool:
        """Whether a graph without nodes is right: each tensor that the callables returned has no
        elements, or is a view of one that the workload owns."""
        owned = [tensor for _, _, tensor in named_tensors(self.workload)]
        own, storages = set(map(id, owned)), set(map(key_of, owned))
        results = list(tensors_in(self.results))
        return bool(results) and all(
            not on_host(result)
            and (not result.numel() or (id(result) not in own and key_of(result) in storages))
            for result in results
        )

    def require_nodes(self, *, to_measure: bool = False) -> None:
        """Raises CgtoolError (exit 4) when no graph has a node, although there is work to do or
        something ``to_measure``."""
        if not self.is_empty() or (self.computes_nothing() and not to_measure):
            return
        why, fix = self.why_empty()
        part = self.workload.parts[0]
        if not any(map(_has_tensors, self.workload.parts)):
            arguments = [*part.args, *part.kwargs.values()]
            shown = ", ".join(f"{short(value)} ({type_name(value)})" for value in arguments[:3])
            more = " and more" if len(arguments) > 3 else ""
            why = (
                "no argument is a tensor, and no op launched work: "
                f"{part.name} is given {f'only {shown}{more}' if arguments else 'no arguments'}"
            )
            fix = "pass the tensors that it works on, on the device that the factory is given"
        raise user_code(
            f"{self.workload.spec}: nothing was captured, the graph is empty",
            frames=part.frames,
            why=why,
            fix=fix,
            phase="capture",
            findings=(Finding(EMPTY_GRAPH, why, part.frames, phase="capture", fix=fix),),
        )

    def activity(self, name: str) -> str:
        """The phase that an error of this capture reports."""
        return f"capture {name}"

    def capture_phases(
        self,
        observe: Callable[[GraphT], AbstractContextManager[Recorder]] = unobserved,
        progress: Progress = quiet,
    ) -> None:
        """Capture every forward in order, then every backward in reverse.

        ``observe(graph)`` is entered before a capture begins and left after it has ended. The
        recorder that it gives is entered inside the capture, around the user's code.

        Raises CgtoolError for what the user's code raises.
        """

        for phase in self.phases():
            activity = self.activity(phase.name)
            progress(activity)
            graph = self.new_graph(phase)
            with observe(graph) as recorder:
                begin = clock.perf_counter_ns()
                with user_errors(phase.part, activity, explain), self.capturing(graph), recorder:
                    phase.result = phase.work()
                graph.capture_ns = clock.perf_counter_ns() - begin
            self.graphs.append(graph)
            if phase.kind != "backward":
                self.results[phase.index] = phase.result


def _has_tensors(part: WorkloadPart) -> bool:
    reached = reach(part.function)
    return bool(inputs_of(part) or part.modules or reached.modules or reached.tensors)


class Followed(NamedTuple):
    """A capture that has noted what each op of it writes."""

    record: Record
    run: WorkloadRun
    steppers: list[Stepper]


RecorderT = TypeVar("RecorderT", bound=OpRecorder)


class VerifyTarget(ABC):
    """A workload's session on a device, and what verification needs beyond a capture."""

    def __init__(self, device: Device, session: Session[Any]) -> None:
        self.device = device
        self.session = session
        self.workload: Workload = session.workload
        self.options: CaptureOptions = session.options
        self.follows_memory = False
        """Warm-up and capture also note what each op writes, for ``Stepper.written``."""
        self.has_kernels = device.simulated_because is None
        """Replays run kernels, which may round differently from those of eager, and graphs that
        share a pool overwrite each other's memory."""

    def eager_stream(self) -> AbstractContextManager[object]:
        """The stream of an eager iteration: that of the graphs, once there are some. Code may keep
        memory or a table for each stream, and only then does eager read and write those that the
        replay does. Warm-up is on another stream, as a user's is."""
        return self.device.eager_stream(self.session.stream if self.session.graphs else None)

    @contextlib.contextmanager
    def recording(self, make_recorder: Callable[..., RecorderT]) -> Iterator[RecorderT]:
        """A recorder, made of root modules and named ranges, which are watched while entered."""
        with watch_annotations(self.options.annotations) as annotations:
            yield make_recorder(roots_of(self.workload), annotations)

    def warm_up(self, progress: Progress) -> None:
        """As ``Session.warm_up``."""
        self.session.warm_up(progress)

    @abstractmethod
    def capture(self, progress: Progress) -> None:
        """Capture every graph of the workload, so that it can be replayed. Raises CgtoolError."""

    @abstractmethod
    def in_graph_memory(self, tensor: torch.Tensor) -> bool:
        """True for a tensor that an op of a capture made."""

    def uncaptured_work(self, differs: bool) -> list[Finding]:
        """Work that the capture did not record, each with its line; none if the capture refuses
        such work. ``differs``: replay and eager differ, so that a count alone is reason enough."""
        return []

    @cached_property
    def steppers(self) -> list[Stepper]:
        """Each graph, to be run node by node, in the order of capture. Made once: an executable for
        each node takes time and memory. Raises CgtoolError if that is not possible."""
        return self._make_steppers()

    @abstractmethod
    def _make_steppers(self) -> list[Stepper]: ...

    @abstractmethod
    def described(self) -> CaptureWithDot:
        """The capture as plain data; its graphs can still be replayed. May run the code."""

    def freed_inputs(self, unexplained: bool) -> list[Finding]:
        """Freed memory that the graphs point into; none if the graphs keep what they read.
        Nothing can be replayed afterwards. ``unexplained``: replay and eager differ and no cause is
        known, so that an address which may be none is reason enough."""
        return []

    @abstractmethod
    def followed(self) -> Followed:
        """The capture, to be looked at while it runs; another one if it ``follows_memory`` not.
        Raises CgtoolError."""
