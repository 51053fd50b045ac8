"""The facts that observers of a script publish: what happened, and where.

What a fact means is for those who subscribe to its type (``cgtool.detectors.script``). Facts are
published on the thread on which they happen, in order, before the script goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from cgtool.model.capture import Frame
from cgtool.observe.script.state import GraphedCallable, Op, WatchedGraph

Event = TypeVar("Event")


class Events:
    """Subscribers by the type of the event; they are called in the order of their subscription."""

    def __init__(self) -> None:
        self._handlers: dict[type, list[Callable[[Any], None]]] = {}
        self.closed = False
        """The script is over: nothing is published any more."""

    def subscribe(self, kind: type[Event], handler: Callable[[Event], None]) -> None:
        self._handlers.setdefault(kind, []).append(handler)

    def publish(self, event: object) -> None:
        if not self.closed:
            for handler in self._handlers.get(type(event), ()):
                handler(event)


# Graphs (graphs.py).


@dataclass(frozen=True, slots=True)
class CaptureBegan:
    """``capture_begin`` has returned."""

    graph: WatchedGraph


@dataclass(frozen=True, slots=True)
class OpCaptured:
    """An op ran in a capture, on the device."""

    graph: WatchedGraph
    op: Op
    new_keys: list[int]
    """Keys in ``graph.external`` of the buffers that this op is the first to touch."""


@dataclass(frozen=True, slots=True)
class PyTorchWarned:
    """PyTorch has warned in a captured backward, or as the capture ended."""

    text: str


@dataclass(frozen=True, slots=True)
class CaptureEnded:
    """``capture_end`` has returned."""

    graph: WatchedGraph


@dataclass(frozen=True, slots=True)
class CaptureFailed:
    """``capture_end`` has raised, or was called because the captured code had raised."""

    graph: WatchedGraph | None
    """None when no capture of this object had begun."""
    end_error: BaseException
    """What ``capture_end`` raised; ``code_error`` when it raised nothing."""
    code_error: BaseException | None
    """What the captured code had raised before."""


@dataclass(frozen=True, slots=True)
class CallRaised:
    """A method of ``CUDAGraph`` has raised outside the end of a capture."""

    error: BaseException
    phase: str
    """``script`` or ``replay``."""
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class ReplayBegins:
    """``replay`` is about to run."""

    graph: WatchedGraph


@dataclass(frozen=True, slots=True)
class ReplayEnded:
    """``replay`` has returned."""

    graph: WatchedGraph


@dataclass(frozen=True, slots=True)
class GraphDropped:
    """A captured graph is reset or has died."""

    graph: WatchedGraph


@dataclass(frozen=True, slots=True)
class CallablesGraphing:
    """``make_graphed_callables`` is called."""

    targets: tuple[Any, ...]
    samples: tuple[Any, ...]
    """Sample arguments of each callable."""
    callables: tuple[GraphedCallable, ...]
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class CallablesGraphed:
    """``make_graphed_callables`` has returned."""

    callables: tuple[GraphedCallable, ...]
    captures: int
    """Forward and backward graphs."""


@dataclass(frozen=True, slots=True)
class GraphedCall:
    """A graphed callable was called, and is about to replay its forward."""

    callable: GraphedCallable
    arguments: tuple[Any, ...]
    """Flattened."""
    called: torch.nn.Module | None
    """The innermost module whose ``__call__`` is running."""
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class GraphedCallFellBack:
    """A graphed module was called in another mode than captured, and runs eagerly."""

    callable: GraphedCallable
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class GraphedBackwardTooLate:
    """The backward of a call is about to run, and the callable was called again since."""

    callable: GraphedCallable


# Ops and host waits (ops.py, streams.py).


@dataclass(frozen=True, slots=True)
class EagerOp:
    """An op outside captures has touched a buffer of some graph."""

    op: Op


@dataclass(frozen=True, slots=True)
class HostWaited:
    """The host has waited for the device."""

    call: str
    tensor: torch.Tensor | None
    """What it reads, if it reads one."""


@dataclass(frozen=True, slots=True)
class TensorReturned:
    """A function of PyTorch has returned a tensor to the script."""

    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class ThreadWorked:
    """A thread has run an op on the device while another thread captures."""

    graph: WatchedGraph
    thread: str
    frames: tuple[Frame, ...]


# Other calls of the script (libraries.py).


@dataclass(frozen=True, slots=True)
class CacheEmptied:
    """The script has called ``torch.cuda.empty_cache()``."""


@dataclass(frozen=True, slots=True)
class MemoryQueried:
    """The script has called ``torch.cuda.mem_get_info()`` outside a capture."""

    free_bytes: int
    allocated_bytes: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class OptimizerSteps:
    """``Optimizer.step`` is about to run."""

    optimizer: torch.optim.Optimizer


@dataclass(frozen=True, slots=True)
class GradientsZeroed:
    """``zero_grad()`` of an optimizer or a module was called outside a capture."""

    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class ModuleRuns:
    """The forward of a module is about to run in a capture."""

    module: torch.nn.Module


@dataclass(frozen=True, slots=True)
class ModuleChanged:
    """``train()`` of a module was called, or a method that exchanges its tensors (``to``,
    ``load_state_dict``)."""

    module: torch.nn.Module
    is_train: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class AutocastEntered:
    """``torch.autocast.__enter__``."""

    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class AutocastLeft:
    """``torch.autocast.__exit__``."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """A generator was seeded, or its state was set."""


@dataclass(frozen=True, slots=True)
class CollectiveStarted:
    """A collective outside captures has returned a ``Work`` (``async_op=True``)."""

    work: Any


@dataclass(frozen=True, slots=True)
class CollectiveDone:
    """The script has waited for a ``Work``, or knows that it is completed."""

    work: Any


@dataclass(frozen=True, slots=True)
class ProcessGroupDestroyed:
    """``destroy_process_group`` is about to run."""


@dataclass(frozen=True, slots=True)
class HostCallbackAdded:
    """A function of the driver that adds a host callback to a stream was looked up in a capture."""


@dataclass(frozen=True, slots=True)
class CompiledInCapture:
    """A function of ``torch.compile`` is called for the first time, in a capture."""


@dataclass(frozen=True, slots=True)
class ScriptEnded:
    """The script is over."""
