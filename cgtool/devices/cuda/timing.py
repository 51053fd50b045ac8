"""Time on the device: calls between two CUDA events, and the clocks while something is measured.

Clocks, temperature and throttling are read through NVML (nvidia-ml-py).
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from cgtool.devices.cuda import cupti
from cgtool.model.measurements import Clock
from cgtool.torch_compat.private import spin

ROUNDS = 7
BUSY_CYCLES = 200_000
"""The device spins for so long while a replay is launched behind it: 0.1 ms."""

# NVML clocks-event reasons that slow kernels down (nvml.h); idle and application clocks do not.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def busy() -> None:
    """Keep the device at work, so that what is launched next does not wait for its launch."""
    sleep: Callable[[int], None] = spin
    sleep(BUSY_CYCLES)


def once_ns(once: Callable[[], object]) -> float:
    """Device time of one call, between two events, launched while the device was busy."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    busy()
    start.record()
    once()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e6


def device_ns(once: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Device time of single calls, after one that is not timed."""
    once()
    return [once_ns(once) for _ in range(rounds)]


def empty_ns(rounds: int = ROUNDS) -> list[float]:
    """What two events take that nothing was launched between."""
    return device_ns(lambda: None, rounds)


class ClockWatch:
    """Samples NVML when asked. Knows no clock where nvidia-ml-py is not installed."""

    def __init__(self, device: int) -> None:
        self._nvml: Any = None
        self._sm: list[int] = []
        self._memory: list[int] = []
        self._temperature: list[int] = []
        self._power: list[float] = []
        self._reasons: set[str] = set()
        self._since_us = 0
        self._profiled = cupti.held()
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            self._handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
            self._nvml = nvml
            self._since_us = int(time.time() * 1e6)
        except Exception:
            # Not installed, no permission, another name for the device: the clock is unknown.
            self._nvml = None

    def sample(self) -> None:
        nvml = self._nvml
        if nvml is None:
            return
        try:
            self._sm.append(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM))
            self._memory.append(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM))
            self._temperature.append(nvml.nvmlDeviceGetTemperature(self._handle, 0))
            self._power.append(nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000)
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
            self._reasons |= {name for bit, name in _REASONS.items() if bits & bit}
        except Exception:
            self._nvml = None

    def others(self) -> int | None:
        """Other processes that had the GPU at work since this watch began; None when NVML cannot
        tell, as in most containers."""
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, self._since_us)
        except Exception:
            # "Not found" is the answer when no process worked, "not supported" when it cannot tell.
            return None
        mine = os.getpid()
        seen = {int(one.pid) for one in samples if one.smUtil > 0}
        # In a container the driver counts processes by other numbers than the process does: of
        # several that worked, one is this one.
        return len(seen - {mine}) if mine in seen else max(0, len(seen) - 1)

    def result(self) -> Clock | None:
        if not self._sm:
            return Clock(profiled=True) if self._profiled else None
        return Clock(
            tuple(self._sm),
            tuple(self._memory),
            tuple(self._temperature),
            tuple(self._power),
            tuple(sorted(self._reasons)),
            self.others(),
            self._profiled,
        )
