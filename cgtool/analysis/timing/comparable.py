"""Whether two times can be held against each other at all: the reasons against it, in sentences."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from cgtool.model.capture import Environment
from cgtool.model.measurements import Clock

APART = 0.03
"""Typical SM clocks further apart than this make other times of the same code."""

_STEADY = frozenset(("power cap",))
_SAME = (
    ("device", "GPU"),
    ("driver", "driver"),
    ("torch", "PyTorch"),
    ("cuda_runtime", "CUDA"),
    ("allocator_config", "allocator configuration"),
)
_HOST = (("cpu", "processor"), ("cpus", "number of processors"))


class Reasons(NamedTuple):
    """Why two times cannot be held against each other, a sentence each; of none, they can."""

    lasting: tuple[str, ...] = ()
    """The same in every further run."""
    passing: tuple[str, ...] = ()
    """The next run may be left in peace."""

    @property
    def all(self) -> tuple[str, ...]:
        return self.lasting + self.passing

    @property
    def pass_over(self) -> bool:
        """Whether further runs may be compared, though these may not."""
        return bool(self.passing) and not self.lasting


def reasons(
    base: Environment,
    base_clock: Clock | None,
    head: Environment,
    head_clock: Clock | None,
    *,
    host: bool = False,
) -> Reasons:
    """Why times of ``base`` (the baseline) and of ``head`` (this measurement) cannot be compared;
    with ``host``, times that the host has a part in. What is not known on a side is no reason."""
    found = []
    for field, name in _SAME + (_HOST if host else ()):
        was, now = getattr(base, field), getattr(head, field)
        if field == "allocator_config":
            was, now = was or "default", now or "default"
        if was and now and was != now:
            found.append(f"another {name}: {was} in the baseline, {now} here")
    # A GPU at its power limit in both is at home there, and the clocks below say how far.
    shared = _STEADY & _slowed(base_clock) & _slowed(head_clock)
    found += disturbed(base_clock, "while the baseline was recorded", besides=shared)
    passing = disturbed(head_clock, "here", besides=shared)
    was_mhz, now_mhz = typical_mhz(base_clock), typical_mhz(head_clock)
    if was_mhz and now_mhz and abs(now_mhz - was_mhz) > APART * was_mhz:
        # What disturbs a GPU changes its clock too.
        (passing or found).append(
            f"another SM clock: {was_mhz} MHz in the baseline, {now_mhz} MHz here"
        )
    return Reasons(tuple(found), tuple(passing))


def disturbed(
    clock: Clock | None, where: str, *, besides: frozenset[str] = frozenset()
) -> list[str]:
    """What slowed the GPU down meanwhile, for no fault of the code: one sentence each."""
    if clock is None:
        return []
    found = []
    slowed = [one for one in clock.throttle_reasons if one not in besides]
    if slowed:
        found.append(f"the GPU slowed itself down {where}: {', '.join(slowed)}")
    others = clock.other_processes
    if others:
        found.append(f"{others} other process{'es' * (others > 1)} had the GPU at work {where}")
    if clock.profiled:
        found.append(f"another profiler was attached {where}: run without it")
    return found


def _slowed(clock: Clock | None) -> frozenset[str]:
    return frozenset(clock.throttle_reasons if clock is not None else ())


def typical_mhz(clock: Clock | None) -> int | None:
    """The SM clock at work: the median of the samples after the first, which is the idle one."""
    if clock is None or not clock.sm_mhz:
        return None
    return round(median(clock.sm_mhz[1:] or clock.sm_mhz))
