"""The properties of a GPU and its machine, as plain data."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from cgtool.devices.cuda.capabilities import version_of
from cgtool.devices.cuda.driver import cu
from cgtool.devices.processor import processor, processors
from cgtool.model.capture import Environment


def environment(index: int) -> Environment:
    """The environment of the device with this index. Initializes CUDA."""
    properties: Any = torch.cuda.get_device_properties(index)
    code, number = cu.cuDriverGetVersion()
    return Environment(
        device=properties.name,
        torch=str(torch.__version__),
        python=platform.python_version(),
        cuda_runtime=torch.version.cuda,
        driver=_driver_version(),
        driver_cuda=f"{number // 1000}.{number % 1000 // 10}" if int(code) == 0 else None,
        cuda_bindings=version_of("cuda-bindings"),
        compute_capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        max_threads_per_multiprocessor=getattr(properties, "max_threads_per_multi_processor", None),
        device_bytes=properties.total_memory,
        platform=platform.platform(),
        cpu=processor(),
        cpus=processors(),
        allocator_config=os.environ.get("PYTORCH_ALLOC_CONF")
        or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
    )


def _driver_version() -> str | None:
    """The driver's own version (``580.159.04``), which only NVML or /proc reports."""
    try:
        with open("/proc/driver/nvidia/version") as file:  # noqa: PTH123 - a kernel file
            words = file.readline().split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), None)
