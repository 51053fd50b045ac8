"""Time on the device between two CUDA events, and the state of the clocks meanwhile.

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
"""The device spins for 0.1 ms, while a replay is launched behind that."""

# NVML clocks-event reasons that slow kernels down (nvml.h); idle and application clocks do not.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def busy() -> None:
    """Keep the device busy, so that the next launch is complete before its work begins."""
    sleep: Callable[[int], None] = spin
    sleep(BUSY_CYCLES)


def once_ns(once: Callable[[], object]) -> float:
    """Device time of one call in ns, between two events, launched while the device is busy."""
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
    """Device times of single calls in ns, after one that is not timed."""
    once()
    return [once_ns(once) for _ in range(rounds)]


def empty_ns(rounds: int = ROUNDS) -> list[float]:
    """The time in ns between two events with nothing launched in between."""
    return device_ns(lambda: None, rounds)


class ClockWatch:
    """Samples NVML. Has no result where nvidia-ml-py is not installed."""

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
            # Not installed, no permission, or the device has another name: the clock is unknown.
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
        """How many other processes used the GPU since this watch began; None when NVML does not
        report it, as in most containers."""
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, self._since_us)
        except Exception:
            # "Not found" when no process used the GPU, "not supported" where NVML cannot report it.
            return None
        own = os.getpid()
        pids = {int(sample.pid) for sample in samples if sample.smUtil > 0}
        # In a container the driver's process ids differ from those that the process sees: one of
        # those that used the GPU is this one.
        return len(pids - {own}) if own in pids else max(0, len(pids) - 1)

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
