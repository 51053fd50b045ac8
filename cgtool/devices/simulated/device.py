"""The simulated device: a GPU modelled on CPU tensors, and what jobs do on it.

A method imports what it needs: a capture does not wait for the rules of ``check``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from cgtool.devices.device import Captured, Checked, Device, VerifyTarget
from cgtool.devices.simulated.capture import capture, check, environment
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.devices.simulated.redirect import redirected
from cgtool.model.capture import Environment
from cgtool.model.options import CaptureOptions, Progress
from cgtool.program.workload import Workload


class SimulatedDevice(Device):
    """The simulated GPU."""

    factory_device = "cuda"
    index = 0

    def __init__(self, simulated_because: str) -> None:
        """``simulated_because``: why it is not a GPU."""
        self.simulated_because: str = simulated_because
        self.model = DeviceModel()

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

        return check_script(path, arguments, progress)

    def verify_target(self, workload: Workload, options: CaptureOptions) -> VerifyTarget:
        from cgtool.devices.simulated.verify import SimulatedVerifyTarget

        return SimulatedVerifyTarget(self, self.model, workload, options)

    def environment(self) -> Environment:
        return environment()

    def eager_stream(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """Every op has run when its call returns."""

    def get_rng_state(self) -> list[torch.Tensor]:
        return [torch.default_generator.get_state()]

    def set_rng_state(self, states: list[torch.Tensor]) -> None:
        torch.default_generator.set_state(states[0])

    def is_host_work(self, values: Any) -> bool:
        return self.model.on_host

    def overwrite_free_memory(self) -> None:
        """Does nothing: the record of a graph holds all that it reads."""
