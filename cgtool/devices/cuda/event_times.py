"""Times on the device, between two CUDA events."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cgtool.torch_compat.private import spin

ROUNDS = 7
_LEAST_BUSY_NS = 100_000
_CYCLES_A_NS = 4
"""No GPU has a clock of 4 GHz, so a spin of so many cycles lasts longer than a nanosecond: on an
H200, twice as long."""


def busy(launch_ns: float) -> None:
    """Keep the device busy for longer than the host needs for the next launch, so that the launch
    is complete before its work begins."""
    spin(_CYCLES_A_NS * round(max(launch_ns, _LEAST_BUSY_NS / 2)))


def once_ns(once: Callable[[], object], launch_ns: float = 0.0) -> float:
    """Device time of one call in ns, between two events, launched while the device is busy: as long
    as in a loop that never waits. ``launch_ns`` is what the host needs to launch it, if that is
    more than 50 us."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    busy(launch_ns)
    start.record()
    once()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e6


def device_ns(once: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Device times of single calls in ns, after one that is not timed."""
    once()
    return [once_ns(once) for _ in range(rounds)]


def empty_ns(rounds: int) -> list[float]:
    """The time in ns between two events with no launch in between."""
    return device_ns(lambda: None, rounds)
