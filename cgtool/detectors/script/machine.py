"""What the watcher asks of the device: a GPU, or the simulated one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cgtool.observe.ops import OpRecorder


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
