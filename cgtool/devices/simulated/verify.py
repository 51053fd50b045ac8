"""Verification on the simulated device: graphs replay on CPU tensors."""

from __future__ import annotations

import torch

from cgtool.devices.device import Device, VerifyTarget
from cgtool.devices.op_results import OpResults
from cgtool.devices.simulated.capture import SimulatedSession
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.devices.simulated.graph import SimulatedGraph
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.effects import effect_of
from cgtool.observe.tensors import strided_parts, tensors_in
from cgtool.program.workload import Workload
from cgtool.torch_compat.private import schema_of


class SimulatedVerifyTarget(VerifyTarget):
    """Verification on the simulated device."""

    def __init__(
        self, device: Device, model: DeviceModel, workload: Workload, options: CaptureOptions
    ) -> None:
        self._session = SimulatedSession(workload, options, model=model)
        super().__init__(device, self._session)
        self._written: set[int] = set()
        """Addresses of the storages that ops of the captures made."""

    def capture(self, progress: Progress) -> None:
        with watch_annotations(self.options.annotations) as annotations:
            self._session.capture(annotations, progress)
        for graph in self._session.captured:
            for step in graph.graph.steps:
                if schema_of(step.func) is not None and not effect_of(step.func).writes:
                    self._written |= {
                        part.untyped_storage().data_ptr()
                        for result in step.results
                        for _, part in strided_parts(result)
                    }

    def in_graph_memory(self, tensor: torch.Tensor) -> bool:
        return any(
            part.untyped_storage().data_ptr() in self._written for _, part in strided_parts(tensor)
        )

    def probe(self) -> _Probes:
        return _Probes(self._session)


class _Probes:
    """A second capture, replayed step by step, with the results of each step kept."""

    def __init__(self, session: SimulatedSession) -> None:
        self._session = SimulatedSession(session.workload, session.options, model=session.model)
        with watch_annotations(session.options.annotations) as annotations:
            self._session.capture(annotations)
        self.record = self._session.record
        self._results: OpResults = []

    def replay(self) -> None:
        self._results = []
        for step in (step for graph in self._session.captured for step in graph.graph.steps):
            SimulatedGraph(steps=[step]).replay()
            if step.call is not None:
                with torch.inference_mode():
                    written = step.results or tensors_in(step.args[:1])
                    self._results.append((step.call, [tensor.clone() for tensor in written]))

    def results(self) -> OpResults:
        return self._results
