"""What verification needs of a workload on a device: capture, replay, and the same work eagerly."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch

from cgtool.detectors.capture_errors import explain
from cgtool.devices.device import Device, Session
from cgtool.model.finding import Finding
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.ops import OpCall, Record
from cgtool.program.boundary import user_errors
from cgtool.program.phases import Phased, Phases, through
from cgtool.program.surface import Named, inputs_of, named_tensors
from cgtool.program.workload import Part, Workload

Results = dict[tuple[str, str], torch.Tensor]
"""Live tensors by (kind, name): outputs and gradients."""


class Probes(Protocol):
    """A second capture, of which every op's results can be seen after a replay."""

    record: Record
    calls: list[OpCall]
    """The ops that launch work, in order."""

    def replay(self) -> None: ...
    def values(self) -> list[list[torch.Tensor] | None]:
        """What each of ``calls`` made in the last replay; None where it was not kept."""


class VerifyTarget(ABC):
    """A workload's session on a device, and what verification needs beyond a capture."""

    def __init__(self, device: Device, session: Session[Any]) -> None:
        self.device = device
        self.session = session
        self.workload: Workload = session.workload
        self.options: CaptureOptions = session.options
        self.simulated = device.simulated

    @abstractmethod
    def warm_up(self, progress: Progress) -> int:
        """Run eager iterations; how many. Raises CgtoolError for what the user's code raises."""

    @abstractmethod
    def capture(self, progress: Progress) -> None:
        """Capture every graph of the workload. Raises CgtoolError."""

    @abstractmethod
    def is_empty(self) -> bool:
        """True when no graph has a node."""

    @abstractmethod
    def in_graph_memory(self, tensor: torch.Tensor) -> bool:
        """True for a tensor that an op of a capture made."""

    @abstractmethod
    def missed(self, differs: bool) -> list[Finding]:
        """Work that the capture did not record, each with its line. ``differs``: replay and eager
        differ, so that a count alone is reason enough."""

    @abstractmethod
    def dead(self) -> list[Finding]:
        """Freed memory that the graphs point into. Nothing can be replayed afterwards."""

    @abstractmethod
    def probe(self) -> Probes:
        """Capture once more, with every op's results kept."""


def _prefixed(workload: Workload, part: Part, name: str) -> str:
    return f"{part.name}: {name}" if len(workload.parts) > 1 else name


def results_of(one: Phased) -> Results:
    """Outputs and gradients of all parts under one name each."""
    workload = one.workload
    found: Results = {}
    for index, named in one.outputs.items():
        for name, tensor in named:
            found["output", _prefixed(workload, workload.parts[index], name)] = tensor
    for index, made in one.gradients.items():
        for (name, _), gradient in zip(one.surfaces[index].inputs, made, strict=True):
            if gradient is not None:
                full = _prefixed(workload, workload.parts[index], f"gradient of {name}")
                found["gradient", full] = gradient
    return found


def eager(
    target: VerifyTarget,
    watch: contextlib.AbstractContextManager[object] | None = None,
    *,
    keep_casts: bool = False,
    hold: list[torch.Tensor] | None = None,
) -> Results:
    """One eager iteration, with the gradients coming in that the graphs are given.

    ``watch`` is entered around the user's code alone, once a phase. ``hold`` gets the gradients
    that come in, which would else be freed with the iteration.
    """
    if autocast_caches() and not keep_casts:
        # Leaving the outermost autocast does this, once an iteration.
        torch.clear_autocast_cache()
    phases = Phases(target.workload, target.options)
    static = target.session.incoming

    def run(part: Part, phase: str, index: int, body: Callable[[], Any]) -> Any:
        if phase == "backward" and index in static:
            for one, other in zip(phases.incoming[index], static[index], strict=False):
                if one.shape == other.shape:
                    one.copy_(other)
        if hold is not None and phase == "backward":
            hold.extend(phases.incoming[index])
        with user_errors(part, f"eager {phase}", explain), watch or contextlib.nullcontext():
            return body()

    with target.device.eager_stream():
        through(phases, run)
    return results_of(phases)


def autocast_caches() -> bool:
    """Autocast is on around the callables, and keeps the casts that it makes of weights."""
    return bool(torch.is_autocast_enabled("cuda") and torch.is_autocast_cache_enabled())


def inputs(target: VerifyTarget) -> list[Named]:
    """The static inputs: tensors among the arguments, and the gradients that come in."""
    workload = target.workload
    found: list[Named] = []
    seen: set[int] = set()
    for part in workload.parts:
        for name, tensor in inputs_of(part):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found.append((_prefixed(workload, part, name), tensor))
    for index, static in target.session.incoming.items():
        for (output, _), tensor in zip(target.session.surfaces[index].outputs, static, strict=True):
            name = _prefixed(workload, workload.parts[index], f"incoming gradient of {output}")
            found.append((name, tensor))
    return found


def closed_over(workload: Workload) -> list[Named]:
    """Tensors that functions reach by name: the inputs of a step, unless it writes them."""
    return [
        (name.replace("tensor ", "", 1), tensor)
        for name, kind, tensor in named_tensors(workload)
        if kind == "input" and "tensor " in name
    ]


def parameters(workload: Workload) -> list[Named]:
    """Floating-point parameters of the workload, each once."""
    found: dict[int, Named] = {}
    for name, kind, tensor in named_tensors(workload):
        if kind == "parameter" and tensor.is_floating_point():
            found.setdefault(id(tensor), (name, tensor))
    return list(found.values())
