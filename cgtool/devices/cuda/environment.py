"""The machine and the software, as plain data."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import torch

from cgtool.devices.cuda.driver import cu
from cgtool.model.capture import Environment
from cgtool.observe.host import processor, processors


def version_of(package: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def driver_version() -> str | None:
    """The driver's own version (``580.159.04``), which only NVML or /proc can tell."""
    try:
        with open("/proc/driver/nvidia/version") as file:  # noqa: PTH123 - a kernel file
            words = file.readline().split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), None)


def describe(device: int) -> Environment:
    """The environment of a capture on CUDA device ``device``."""
    properties: Any = torch.cuda.get_device_properties(device)
    code, number = cu.cuDriverGetVersion()
    return Environment(
        device=properties.name,
        torch=str(torch.__version__),
        python=platform.python_version(),
        cuda_runtime=torch.version.cuda,
        driver=driver_version(),
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
