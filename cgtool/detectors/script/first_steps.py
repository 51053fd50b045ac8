"""State that PyTorch makes at a first call: each replay makes it anew.

Optimizers make their moments, and lazy modules their parameters, where they first need them. If
nothing called them before, that is in the capture. Eager code goes on with what its first call has
made; a replay begins again.
"""

from __future__ import annotations

import weakref
from collections import defaultdict

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from cgtool.detectors.frozen_host_state import CONTROL_FLOW_FROZEN
from cgtool.detectors.reporting import Detector
from cgtool.model.capture import Frames
from cgtool.observe.script import events
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.tensors import key_of, tensors_in
from cgtool.torch_compat.private import no_torch_function

_WARM_UP = "run the code once, as a warm-up, before the capture; a step with its optimizer"


class FirstSteps(Detector):
    """Optimizers that take their first step in a capture, and lazy modules that first run there."""

    phase = "capture"

    def start(self) -> None:
        self._steps: dict[weakref.ref[torch.optim.Optimizer], Frames] = {}
        """Optimizers without state for some parameter when they stepped in the capture."""
        self._found: defaultdict[WatchedGraph, list[tuple[str, Frames]]] = defaultdict(list)

    def on_capture_began(self, _event: events.CaptureBegan) -> None:
        self._steps = {}

    def on_module_runs(self, event: events.ModuleRuns) -> None:
        module, graph = event.module, self.script.capture
        if graph is None or not isinstance(module, LazyModuleMixin):
            return
        if module.has_uninitialized_params():
            reason = "first runs in this capture: each replay draws its parameters anew"
            self._found[graph].append((f"{type(module).__name__} {reason}", self.script.place()))

    def on_optimizer_steps(self, event: events.OptimizerSteps) -> None:
        if self.script.capture is None:
            return
        with no_torch_function():
            if any(parameter.grad is not None for parameter in _without_state(event.optimizer)):
                self._steps.setdefault(weakref.ref(event.optimizer), self.script.place())

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        for reference, place in self._steps.items():
            optimizer = reference()
            states = [] if optimizer is None else list(optimizer.state.values())
            if any(key_of(tensor) in event.graph.allocated for tensor in tensors_in(states)):
                reason = "takes its first step in this capture: each replay is a first step, with "
                reason = f"{type(optimizer).__name__} {reason}new moments"
                self._found[event.graph].append((reason, place))

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        # The first replay is the first call.
        if event.graph.replays and event.graph in self._found:
            for reason, place in self._found.pop(event.graph):
                self.report(CONTROL_FLOW_FROZEN, reason, place, fix=_WARM_UP)


def _without_state(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return [each for each in parameters if not optimizer.state.get(each)]
