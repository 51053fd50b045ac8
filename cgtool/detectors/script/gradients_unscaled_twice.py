"""Gradients that a graph divides by the scale of a ``GradScaler``, and that it divides again.

``unscale_`` notes on the host that it was called, and ``step`` reads that. In a capture it notes it
once; no replay does.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.observe.script import events
from cgtool.observe.script.state import WatchedGraph
from cgtool.torch_compat.private import scaler_stage

GRADIENTS_UNSCALED_TWICE = code("gradients-unscaled-twice")


class Unscaled(Detector):
    """``unscale_`` in captured code, and the optimizers that are stepped outside of it."""

    def start(self) -> None:
        self._captured: list[
            tuple[WatchedGraph, weakref.ref[Any], weakref.ref[torch.optim.Optimizer]]
        ] = []
        """Graphs that unscale the gradients of an optimizer, with the scaler."""

    def on_gradients_unscaled(self, event: events.GradientsUnscaled) -> None:
        scaler, optimizer, capture = event.scaler, event.optimizer, self.script.capture
        if scaler_stage(scaler, optimizer) != "READY":
            return
        if capture is not None:
            if event.steps:
                return
            self._captured.append((capture, weakref.ref(scaler), weakref.ref(optimizer)))
            return
        for graph, known_scaler, known_optimizer in self._captured:
            is_same = known_scaler() is scaler and known_optimizer() is optimizer
            if is_same and graph.replayable and self._has_gradients_of(graph, optimizer):
                self.report(
                    GRADIENTS_UNSCALED_TWICE,
                    f"{graph.name} has divided these gradients by the scale already: `unscale_` was"
                    " captured, and the scaler does not know of its replays",
                    phase="replay",
                    graphs=(graph,),
                )
                return

    def _has_gradients_of(self, graph: WatchedGraph, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the last one that has written the gradients of an optimizer is a graph."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                buffer = parameter.grad is not None and self.script.buffers.find(parameter.grad)
                if buffer and buffer.last_write is not None:
                    return buffer.last_write.graph is graph
        return False
