"""The one place that chooses between a GPU and the simulated device."""

from __future__ import annotations

import torch

from cgtool.devices.device import Device
from cgtool.model.failure import machine, usage
from cgtool.model.options import unexpected


def open_device(wanted: str | None) -> Device:
    """The device of ``--device``; without one a GPU where there is one.

    Raises CgtoolError: exit 2 for a text that is not a device, 3 where this GPU does not exist.
    """
    expected = unexpected("device", wanted)
    if expected is not None:
        raise usage(f"device `{wanted}` is not {expected}")
    reason = "--device simulated" if wanted == "simulated" else why_no_gpu()
    if reason is not None:
        if wanted not in (None, "simulated"):
            fix = "leave out --device to simulate a GPU"
            raise machine(f"device {wanted}: {reason}", fix=fix)
        from cgtool.devices.simulated.device import SimulatedDevice

        return SimulatedDevice(reason)
    count = torch.cuda.device_count()
    if wanted is not None and int(wanted.partition(":")[2] or 0) >= count:
        raise machine(f"device {wanted}: this machine has {count} GPU{'s' * (count > 1)}")
    from cgtool.devices.cuda.device import CudaDevice

    return CudaDevice(wanted or "cuda")


def why_no_gpu() -> str | None:
    """Why PyTorch cannot use a GPU; None where it can."""
    if torch.cuda.is_available():
        return None
    return (
        "PyTorch is built without CUDA"
        if torch.version.cuda is None
        else "PyTorch sees no usable GPU"
    )
