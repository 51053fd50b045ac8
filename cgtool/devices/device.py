"""A device, a workload's session on it, and the one loop that captures.

``cgtool.devices.cuda`` and ``cgtool.devices.simulated`` implement both classes. Every command that
captures goes through ``Session.capture_phases``: a plain capture, one with a recorder inside, the
dry run of ``check``, the captures of ``bench --against`` and those of ``verify``.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from cgtool.detectors.capture_errors import explain
from cgtool.model.capture import Environment
from cgtool.model.failure import user_code
from cgtool.model.options import Progress
from cgtool.program.boundary import user_errors
from cgtool.program.phases import Phases, name_of, run_phases
from cgtool.program.workload import Part


def quiet(_text: str) -> None:
    """The ``Progress`` that reports nothing."""


class Device(ABC):
    """A GPU, or the model of one on CPU tensors."""

    simulated: bool
    factory_device: str
    """What a factory gets as ``device``."""

    @abstractmethod
    def environment(self) -> Environment:
        """The device, and the software that drives it."""

    @abstractmethod
    def eager_stream(self) -> AbstractContextManager[object]:
        """The stream of eager iterations. Not the default stream: a capture may not wait for work
        on that."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all submitted work. Raises RuntimeError for the errors of that work."""

    @abstractmethod
    def get_rng_state(self) -> list[torch.Tensor]:
        """The states of the host's and the device's generators."""

    @abstractmethod
    def set_rng_state(self, states: list[torch.Tensor]) -> None:
        """Restore what ``get_rng_state`` returned."""

    @abstractmethod
    def is_host_work(self, values: Any) -> bool:
        """True when the op that runs now, and made or was given ``values``, is not work for the
        device."""

    @abstractmethod
    def overwrite_free_memory(self) -> None:
        """Overwrite the device memory that the allocator holds and no tensor uses."""


@dataclass
class CapturedGraph:
    """One phase of a workload and the graph that it was captured into."""

    name: str
    """``forward``, or ``backward 1`` where there are several callables."""
    phase: str
    """``forward``, ``backward`` or ``step``."""
    callable: int
    """Index into ``Workload.parts``."""
    part: Part
    graph: Any
    """Has ``replay()``."""
    capture_ns: int = field(default=0, kw_only=True)
    """Time on the host from the begin of the capture to its end."""


GraphT = TypeVar("GraphT", bound=CapturedGraph)
Recorder = AbstractContextManager[object]


def unobserved(_graph: CapturedGraph) -> AbstractContextManager[Recorder]:
    """Capture as a user's program does."""
    return contextlib.nullcontext(contextlib.nullcontext())


@dataclass
class Session(Phases, ABC, Generic[GraphT]):
    """A workload on a device: its graphs, and the tensors that they replay on."""

    captured: list[GraphT] = field(default_factory=list)
    """In the order of capture, which is the order of replay."""
    results: dict[int, Any] = field(default_factory=dict)
    """What each callable returned, tensors or not: held, as a user would hold it."""
    warmup_iters: int = 0
    warmup_ns: int = 0

    @abstractmethod
    def new_graph(self, name: str, phase: str, index: int, part: Part) -> GraphT:
        """An empty graph for a phase of callable ``index``; the device is idle on return."""

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

    def require_nodes(self) -> None:
        """Raises CgtoolError (exit 4) when no graph has a node."""
        if not self.is_empty():
            return
        why, fix = self.why_empty()
        raise user_code(
            f"{self.workload.spec}: nothing was captured, the graph is empty",
            frames=self.workload.parts[0].frames,
            why=why,
            fix=fix,
            phase="capture",
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

        def run(part: Part, phase: str, index: int, body: Callable[[], Any]) -> Any:
            name = name_of(self, phase, index)
            progress(self.activity(name))
            graph = self.new_graph(name, phase, index, part)
            with observe(graph) as recorder:
                begin = time.perf_counter_ns()
                with (
                    user_errors(part, self.activity(name), explain),
                    self.capturing(graph),
                    recorder,
                ):
                    result = body()
                graph.capture_ns = time.perf_counter_ns() - begin
            self.captured.append(graph)
            if phase != "backward":
                self.results[index] = result
            return result

        run_phases(self, run)
