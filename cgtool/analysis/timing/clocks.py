"""What NVML said beside several runs, as one record. Each began with a sample of an idle GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median_low
from typing import TypeVar

from msgspec.structs import replace

from cgtool.model.measurements import Clock

N = TypeVar("N", bound=float)


def merged(clocks: Sequence[Clock]) -> Clock | None:
    """All samples in a row, and everything that disturbed any run. Of the idle samples only the
    first stays."""
    if not clocks:
        return None
    others = [one.other_processes for one in clocks if one.other_processes is not None]
    return Clock(
        sm_mhz=_joined([one.sm_mhz for one in clocks]),
        memory_mhz=_joined([one.memory_mhz for one in clocks]),
        temperature_c=_joined([one.temperature_c for one in clocks]),
        power_w=_joined([one.power_w for one in clocks]),
        throttle_reasons=tuple(sorted({each for one in clocks for each in one.throttle_reasons})),
        other_processes=max(others, default=None),
        profiled=any(one.profiled for one in clocks),
    )


def typical(clock: Clock) -> Clock:
    """One sample of each kind: the median clock, the highest temperature and power."""
    return replace(
        clock,
        sm_mhz=_one(median_low, clock.sm_mhz),
        memory_mhz=_one(median_low, clock.memory_mhz),
        temperature_c=_one(max, clock.temperature_c),
        power_w=_one(max, clock.power_w),
    )


def _joined(runs: Sequence[tuple[N, ...]]) -> tuple[N, ...]:
    return (*runs[0], *(one for run in runs[1:] for one in _busy(run)))


def _one(pick: Callable[[tuple[N, ...]], N], samples: tuple[N, ...]) -> tuple[N, ...]:
    return (pick(_busy(samples)),) if samples else ()


def _busy(samples: tuple[N, ...]) -> tuple[N, ...]:
    return samples[1:] or samples
