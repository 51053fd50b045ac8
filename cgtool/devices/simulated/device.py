"""The simulated device: a GPU modelled on CPU tensors, and what jobs do on it.

A method imports what it needs: a capture does not wait for the rules of ``check``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from cgtool.devices.device import Captured, Checked, Device, OpResults, VerifyTarget
from cgtool.devices.simulated.capture import SimulatedSession, capture, check, environment
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.devices.simulated.graph import SimulatedGraph
from cgtool.devices.simulated.redirect import redirected
from cgtool.model.capture import Caveat, Environment
from cgtool.model.failure import EXIT_UNKNOWN, CgtoolError, cannot_tell
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.effects import effect_of
from cgtool.observe.tensors import strided_parts, tensors_in
from cgtool.program.workload import Workload
from cgtool.torch_compat.private import schema_of
from cgtool.torch_compat.storages import StorageRef


class SimulatedDevice(Device):
    """The simulated GPU."""

    factory_device = "cuda"
    index = 0

    def __init__(self, simulated_because: str) -> None:
        """``simulated_because``: why it is not a GPU."""
        self.simulated_because: str = simulated_because
        self.model = DeviceModel()

    def notes(self) -> tuple[Caveat, ...]:
        simulated = f"simulated on CPU tensors ({self.simulated_because})"
        return (Caveat("simulated", simulated), *self.model.uncompiled)

    @contextlib.contextmanager
    def active(self) -> Iterator[DeviceModel]:
        with redirected(self.model):
            yield self.model

    def capture(self, workload: Workload, options: CaptureOptions, progress: Progress) -> Captured:
        return capture(self.model, workload, options, progress, self.simulated_because), {}

    def check(
        self, workload: Workload, options: CaptureOptions, progress: Progress
    ) -> tuple[Checked, Captured | None]:
        checked, captured = check(self.model, workload, options, progress, self.simulated_because)
        return checked, None if captured is None else (captured, {})

    def check_script(self, path: str, arguments: tuple[str, ...], progress: Progress) -> Checked:
        from cgtool.devices.simulated.cudagraph import check_script
        from cgtool.devices.simulated.script_device import ScriptDevice

        self.model = model = ScriptDevice()
        try:
            return check_script(path, arguments, progress, model)
        except CgtoolError as error:
            if error.failure.exit_code != EXIT_UNKNOWN or not model.uncompiled:
                raise
            raise cannot_tell(
                error.failure.what,
                why=model.uncompiled[0].text,
                fix=f"name the function that is compiled: `cgtool check {path}:NAME`; or check the "
                "script on a machine with a GPU",
                phase=error.failure.phase,
            ) from None

    def verify_target(self, workload: Workload, options: CaptureOptions) -> VerifyTarget:
        return SimulatedVerifyTarget(self, workload, options)

    def environment(self) -> Environment:
        return environment()

    def eager_stream(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """Nothing to wait for: every op has run when its call returns."""

    def get_rng_state(self) -> list[torch.Tensor]:
        return [torch.default_generator.get_state()]

    def set_rng_state(self, states: list[torch.Tensor]) -> None:
        torch.default_generator.set_state(states[0])

    def is_host_work(self, values: Any) -> bool:
        return self.model.on_host

    def overwrite_free_memory(self) -> None:
        """Nothing to do: the record of a graph keeps alive everything that it reads."""


class SimulatedVerifyTarget(VerifyTarget):
    """The session in which simulated replays are compared with eager."""

    def __init__(
        self, device: SimulatedDevice, workload: Workload, options: CaptureOptions
    ) -> None:
        self._session = SimulatedSession(workload, options, model=device.model)
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
                        StorageRef(part).address
                        for result in step.results
                        for _, part in strided_parts(result)
                    }

    def in_graph_memory(self, tensor: torch.Tensor) -> bool:
        return any(StorageRef(part).address in self._written for _, part in strided_parts(tensor))

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
