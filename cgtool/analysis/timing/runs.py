"""Several runs of one bench as one, what disturbed them, and whether times may be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median, median_low
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from cgtool.model.capture import Capture, Environment
from cgtool.model.measurements import Bench, Clock, Samples

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
    found += disturbances(base_clock, "while the baseline was recorded", besides=shared)
    passing = disturbances(head_clock, "here", besides=shared)
    was_mhz, now_mhz = typical_mhz(base_clock), typical_mhz(head_clock)
    if was_mhz and now_mhz and abs(now_mhz - was_mhz) > APART * was_mhz:
        # What disturbs a GPU changes its clock too.
        (passing or found).append(
            f"another SM clock: {was_mhz} MHz in the baseline, {now_mhz} MHz here"
        )
    return Reasons(tuple(found), tuple(passing))


def disturbances(
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


N = TypeVar("N", bound=float)


def merge_clocks(clocks: Sequence[Clock]) -> Clock | None:
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


def typical_clock(clock: Clock) -> Clock:
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


def merge(captures: Sequence[Capture]) -> Capture:
    """The first capture, with the samples of all that are ``calm``, runs numbered through, and
    every caveat once.

    Raises ValueError when there is none, or none that was timed.
    """
    timed = [one.bench for one in calm(captures) if one.bench is not None]
    if not timed:
        raise ValueError("no capture holds timings")
    samples: list[Samples] = []
    for bench in timed:
        before = 1 + max((one.run for one in samples), default=-1)
        samples += [replace(one, run=before + one.run) for one in bench.samples]
    caveats = tuple(dict.fromkeys(one for capture in captures for one in capture.caveats))
    return replace(
        captures[0],
        bench=Bench(
            tuple(samples),
            merge_clocks([one.clock for one in timed if one.clock is not None]),
            timed[0].seed,
            timed[0].timer_grain_ns,
        ),
        caveats=caveats,
    )


def calm(captures: Sequence[Capture]) -> list[Capture]:
    """Those whose times nothing disturbed; all, where there is none."""
    return [one for one in captures if not disturbances_of(one)] or list(captures)


def disturbances_of(capture: Capture) -> list[str]:
    """What slowed the GPU down while it was timed, for no fault of the code: a sentence each."""
    return disturbances(capture.bench.clock if capture.bench else None, "meanwhile")


def by_side(samples: Iterable[Samples]) -> dict[str, dict[str, Samples]]:
    """By phase, and then by name (``eager``): the rounds of all runs in one row."""
    found: dict[str, dict[str, Samples]] = {}
    for one in samples:
        sides = found.setdefault(one.phase, {})
        before = sides.get(one.name)
        sides[one.name] = one if before is None else _in_a_row(before, one)
    return found


def _in_a_row(one: Samples, other: Samples) -> Samples:
    return replace(
        one,
        device_ns=one.device_ns + other.device_ns,
        host_ns=one.host_ns + other.host_ns,
        captures=one.captures + other.captures,
    )


def by_capture(one: Samples) -> list[tuple[float, ...]]:
    """Device times of each of its captures."""
    rounds, count = one.device_ns, one.captures
    return [
        rounds[number * len(rounds) // count : (number + 1) * len(rounds) // count]
        for number in range(count)
    ]
