"""What the watcher asks of the device: a GPU, or the simulated one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from types import FrameType
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import call_op
from cgtool.observe.ops import OpCall, OpRecorder


class Machine(Protocol):
    """Two answer: ``cgtool.devices.cuda.script`` and ``cgtool.devices.simulated.script``."""

    simulated: bool
    graph_class: Any
    """``torch.cuda.CUDAGraph`` while the script runs."""

    @property
    def recorder(self) -> OpRecorder | None:
        """Takes the ops of the capture in progress."""

    @property
    def on_host(self) -> bool:
        """What runs now touches host tensors only, whatever they say of themselves."""

    def begun(self, watch: Any) -> None:
        """A capture has begun on the current stream."""

    def ended(self) -> None:
        """It is over, well or not."""

    def place(self, tensor: torch.Tensor) -> str:
        """``device``, ``host``, ``pinned``."""

    def address(self, storage: torch.UntypedStorage) -> int:
        """On the device."""

    def dead(self, ref: StorageWeakRef) -> bool:
        """The script has let go of the memory."""

    def pool_bytes(self, pool: tuple[int, int]) -> int:
        """Reserved by a pool of graphs."""

    def keeps(self, graph: Any) -> bool:
        """A captured graph was made with keep_graph=True."""

    def nodes(self) -> int:
        """Of the graph that the current stream is captured into; 0 for what cannot be told."""

    def template(self, graph: Any) -> Hashable:
        """What the template of a graph made with keep_graph=True holds now; None for what cannot
        be told."""

    def modes_of_thread(self) -> list[Any]:
        """What a thread of the script's must enter to see the same device."""

    def stream(self) -> int:
        """Handle of the current stream; 0 is the default stream."""


Told = Callable[[OpCall, Any, tuple[Any, ...], dict[str, Any], Any], None]


def caller_of_modes(caller: FrameType | None) -> FrameType | None:
    """The frame above the watcher's own mode, which hands ops on."""
    return None if caller is None else caller.f_back


class CaptureWatcher(OpRecorder):
    """On a GPU: the op runs as it is, and is told. Not entered: the watcher's mode hands on."""

    def __init__(self, annotations: Annotations, told: Told) -> None:
        super().__init__({}, annotations)
        self._told = told
        self._home = threading.get_ident()
        self.modules.__enter__()

    def stop(self) -> None:
        self.modules.__exit__(None, None, None)

    def begin(self, func: Any, caller: Any) -> OpCall:
        return super().begin(func, caller_of_modes(caller))

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        made = call_op(func, args, kwargs)
        self._told(call, func, args, kwargs, made)
        return made
