"""The device that a workload is loaded on and verified on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from cgtool.jobs.verify.runs import VerifyTarget
from cgtool.model.capture import Environment
from cgtool.model.options import CaptureOptions
from cgtool.program.workload import Workload


@dataclass(frozen=True)
class Opened:
    """A device, before the user's file is loaded."""

    device: str
    """What factories get as ``device``."""
    target: Callable[[Workload, CaptureOptions], VerifyTarget]
    environment: Callable[[], Environment]


@contextlib.contextmanager
def opened(device: str) -> Iterator[Opened]:
    """``device``: ``cuda``, ``cuda:1`` or ``simulated``."""
    if device == "simulated":
        from cgtool.devices.simulated.capture import open_device
        from cgtool.jobs.verify.on_simulated import Simulated

        with open_device() as simulated:
            yield Opened(
                simulated.factory_device,
                lambda workload, options: Simulated(simulated, workload, options),
                simulated.environment,
            )
        return
    from cgtool.devices.cuda.device import describe
    from cgtool.jobs.verify.on_cuda import Cuda

    yield Opened(device, Cuda, lambda: describe(torch.cuda.current_device()))
