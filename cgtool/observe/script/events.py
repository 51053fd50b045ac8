"""The facts that observers of a script publish.

What a fact means is for those who subscribe to its type (``cgtool.detectors.script``). Facts are
published on the thread on which they happen, in order, before the script goes on: where it happened
is ``ObservedScript.place()``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from cgtool.observe.ops import OpCall
from cgtool.observe.script.state import ExternalUse, GraphedCallable, Op, WatchedGraph
from cgtool.torch_compat.dispatch_keys import Args, Kwargs

Event = TypeVar("Event")


class Publisher:
    """Subscribers by the type of the event, which are called in the order of their subscription."""

    def __init__(self) -> None:
        self._handlers: dict[type, list[Callable[[Any], None]]] = {}
        self.closed = False
        """Nothing is published: the script is over, or captured code runs again."""
        self.failure: Exception | None = None
        """The first error of cgtool's own that a handler has raised."""
        self.published = 0
        """How many events."""

    def subscribe(self, kind: type[Event], handler: Callable[[Event], None]) -> None:
        self._handlers.setdefault(kind, []).append(handler)

    def publish(self, event: object) -> None:
        if not self.closed:
            self.published += 1
            for handler in self._handlers.get(type(event), ()):
                try:
                    handler(event)
                except Exception as error:
                    # The program must not notice it.
                    self.failure = self.failure or error


# Graphs (script.py, graphed_callables.py).


@dataclass(frozen=True)
class _OfGraph:
    graph: WatchedGraph


class CaptureBegan(_OfGraph):
    """``capture_begin`` has returned."""


class OpCaptured(NamedTuple):
    """An op ran in a capture, on the device."""

    graph: WatchedGraph
    op: Op
    result: Any
    stream: int
    tick: int
    """Position in the stream (``StreamOrder.submit``)."""
    first_uses: list[ExternalUse]
    """The uses in ``graph.external`` whose first op this is."""


class OpRaised(NamedTuple):
    """An op has raised in a capture."""

    graph: WatchedGraph
    error: Exception
    call: OpCall
    """The op."""
    args: Args
    kwargs: Kwargs


class Warned(NamedTuple):
    """PyTorch has warned in a captured backward, or as the capture ended."""

    text: str


class CaptureEnds(_OfGraph):
    """``capture_end`` is about to run."""


class CaptureEnded(_OfGraph):
    """``capture_end`` has returned."""


class CaptureFailed(NamedTuple):
    """``capture_end`` has raised, or was called because the captured code had raised, or the graph
    was freed before."""

    graph: WatchedGraph
    end_error: BaseException
    """The exception of ``capture_end``; ``code_error`` if it raised none."""
    code_error: BaseException | None
    """The exception that the captured code had raised before."""


class CallRaised(NamedTuple):
    """A method of ``CUDAGraph`` has raised outside the end of a capture."""

    error: BaseException
    phase: str
    """``script`` or ``replay``."""


class ReplayBegins(_OfGraph):
    """``replay`` is about to run."""


class ReplayEnded(_OfGraph):
    """``replay`` has returned."""


class GraphDropped(_OfGraph):
    """A captured graph is reset or has died."""


class CallablesGraphing(NamedTuple):
    """``make_graphed_callables`` is called."""

    targets: tuple[Any, ...]
    callables: tuple[GraphedCallable, ...]


class CallablesGraphed(NamedTuple):
    """``make_graphed_callables`` has returned."""

    callables: tuple[GraphedCallable, ...]
    captures: int
    """Forward and backward graphs."""


class GraphedCall(NamedTuple):
    """A graphed callable was called, and is about to replay its forward."""

    callable: GraphedCallable
    arguments: tuple[Any, ...]
    """Flattened."""
    called: torch.nn.Module | None
    """The innermost module whose ``__call__`` is running."""


class CallableReturned(NamedTuple):
    """A call of a graphed callable has returned."""

    callable: GraphedCallable
    tensors: list[torch.Tensor]


class GraphedCallFellBack(NamedTuple):
    """A graphed module was called in another mode than captured, and runs eagerly."""

    callable: GraphedCallable


class GraphedBackwardTooLate(NamedTuple):
    """The backward of a call is about to run, and the callable was called again since."""

    callable: GraphedCallable


class GraphedBackwardKeepsGraph(NamedTuple):
    """The backward of a call is about to run with ``create_graph=True``."""

    callable: GraphedCallable


# Ops and host waits (calls.py, streams.py).


class EagerOp(NamedTuple):
    """An op outside captures has touched a buffer of some graph."""

    op: Op
    result: Any


class ResultUsed(NamedTuple):
    """An op outside captures has touched one of ``ObservedScript.results`` or ``early``."""

    op: Op
    result: Any


class HostWaited(NamedTuple):
    """The host has waited for the device."""

    call: str
    tensor: torch.Tensor | None
    """The tensor that it reads, if it reads one."""


class HostRead(NamedTuple):
    """A call outside captures reads a tensor on the host and dispatches no op."""

    tensor: torch.Tensor
    array: Any = None
    """A NumPy array of its memory, which may be read later; None if the call itself reads it."""


class TensorMade(NamedTuple):
    """An op outside captures has made a tensor on the device."""

    tensor: torch.Tensor


class TensorsSwapped(NamedTuple):
    """Two tensors have exchanged their memory."""

    tensors: tuple[torch.Tensor, torch.Tensor]


class StorageResized(NamedTuple):
    """``UntypedStorage.resize_`` has given a storage other memory, or none."""

    key: int


class ThreadWorked(NamedTuple):
    """A thread has run an op on the device while another thread captures."""

    graph: WatchedGraph
    thread: str


class ThreadEnded(NamedTuple):
    """An exception has ended a thread."""

    error: BaseException


class ThreadRaised(NamedTuple):
    """A call has raised in a thread while another thread captures, or right after."""

    graph: WatchedGraph
    """The graph of the capture in progress, or of the last one."""
    thread: str
    error: BaseException


# Other calls of the script (calls.py).


class CacheEmptied(NamedTuple):
    """The script has called ``torch.cuda.empty_cache()``."""


class OptimizerSteps(NamedTuple):
    """``Optimizer.step`` is about to run."""

    optimizer: torch.optim.Optimizer


class GradientsUnscaled(NamedTuple):
    """``GradScaler`` is about to divide the gradients of an optimizer by its scale, or to step it,
    which does so where it was not done."""

    scaler: Any
    optimizer: torch.optim.Optimizer
    steps: bool


class GradientsZeroed(NamedTuple):
    """``zero_grad()`` of an optimizer or a module was called outside a capture."""


class ModuleRuns(NamedTuple):
    """The forward of a module is about to run in a capture."""

    module: torch.nn.Module


class ModuleChanged(NamedTuple):
    """``train()`` of a module was called, or a method that exchanges its tensors (``to``,
    ``load_state_dict``), or a parameter or buffer of it was registered or deleted."""

    module: torch.nn.Module
    is_train: bool
    name: str | None = None
    """Name of that parameter or buffer."""


class OptimizerLoaded(NamedTuple):
    """``load_state_dict`` of an optimizer has returned."""

    tensors: list[torch.Tensor]
    """Tensors of its state and settings that were not there before."""


class StreamRecorded(NamedTuple):
    """Captured code calls ``record_stream``: the memory of the tensor is used again only after the
    capture."""

    tensor: torch.Tensor


class AutocastEntered(NamedTuple):
    """``torch.autocast.__enter__``."""


class AutocastLeft(NamedTuple):
    """``torch.autocast.__exit__``."""


class Seeded(NamedTuple):
    """A generator was seeded, or its state was set."""


class CollectiveStarted(NamedTuple):
    """A collective outside captures has returned a ``Work`` (``async_op=True``)."""

    work: Any


class CollectiveDone(NamedTuple):
    """The script has waited for a ``Work``, or knows that it is completed."""

    work: Any


class ProcessGroupDestroyed(NamedTuple):
    """``destroy_process_group`` is about to run."""


class HostCallbackAdded(NamedTuple):
    """A function of the driver that adds a host callback to a stream was looked up in a capture."""


class CompiledInCapture(NamedTuple):
    """A function of ``torch.compile`` is called for the first time, in a capture."""


class ScriptEnded(NamedTuple):
    """The script is over."""
