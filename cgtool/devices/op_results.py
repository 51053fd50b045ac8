"""Keeps the results of every op, for a comparison of replay and eager op by op."""

from __future__ import annotations

from typing import Any

import torch

from cgtool.devices.device import Device
from cgtool.observe.effects import effect_of
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.observe.tensors import strided, tensors_in

OpResults = list[tuple[OpCall, list[torch.Tensor]]]
"""Every op that launches work, and what it wrote; empty where there was no memory to keep it."""
_NOTHING = ("profiler::", "prim::", "aten::detach", "aten::lift_fresh", "aten::is_", "aten::set_")


class ResultRecorder(OpRecorder):
    """Keeps a copy of what every op of the device wrote, while there is memory. In a capture, the
    copies become nodes of the graph."""

    def __init__(
        self, roots: Any, annotations: Any, device: Device, budget: list[int] | None = None
    ) -> None:
        """``budget``: the bytes that the copies of several recorders may take."""
        super().__init__(roots, annotations)
        self.device = device
        self.budget = budget
        self.results: OpResults = []

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        output = self.run(func, args, kwargs)
        if call.name.startswith(_NOTHING) or effect_of(func).view:
            return output
        results = list(tensors_in(output))
        if self.device.is_host_work(results or args):
            return output
        # Multi-tensor ops return nothing and write their first argument.
        written = strided(results) or strided(args[:1])
        size = sum(tensor.nbytes for tensor in written)
        kept: list[torch.Tensor] = []
        if self.budget is None or size <= self.budget[0]:
            if self.budget is not None:
                self.budget[0] -= size
            with torch.no_grad():
                kept = [tensor.detach().clone() for tensor in written]
        self.results.append((call, kept))
        return output
