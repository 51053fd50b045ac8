"""Runs of one bench: merge them, report disturbances, decide whether times may be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median, median_low
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from cgtool.model.capture import Capture, Environment
from cgtool.model.measurements import Clock, Samples

N = TypeVar("N", bound=float)

CLOCK_TOLERANCE = 0.03
"""Relative difference of typical SM clocks above which times are not compared."""

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
    """Why two times cannot be compared, one sentence each; empty if they can."""

    permanent: tuple[str, ...] = ()
    """Reasons that further runs cannot remove."""
    temporary: tuple[str, ...] = ()
    """Reasons that may not apply to the next run."""

    @property
    def all(self) -> tuple[str, ...]:
        return self.permanent + self.temporary

    @property
    def pass_over(self) -> bool:
        """Whether further runs may be comparable, although these are not."""
        return bool(self.temporary) and not self.permanent


def why_incomparable(
    base: Environment,
    base_clock: Clock | None,
    head: Environment,
    head_clock: Clock | None,
    *,
    host: bool = False,
) -> Reasons:
    """Why times of ``base`` (the baseline) and of ``head`` (this measurement) cannot be compared;
    with ``host``, times that are host-dependent. What is unknown on a side is not a reason."""
    permanent = []
    for field, name in _SAME + (_HOST if host else ()):
        default = "default" if field == "allocator_config" else None
        was, now = getattr(base, field) or default, getattr(head, field) or default
        if was and now and was != now:
            permanent.append(f"different {name}: {was} in the baseline, {now} here")
    base_clock, head_clock = base_clock or Clock(), head_clock or Clock()
    # A GPU at its power limit in both is compared: the clocks below say whether it may be.
    shared = _STEADY.intersection(base_clock.throttle_reasons, head_clock.throttle_reasons)
    permanent += disturbances(base_clock, "while the baseline was recorded", ignored=shared)
    temporary = disturbances(head_clock, "here", ignored=shared)
    if base_clock.sm_mhz and head_clock.sm_mhz:
        was, now = (round(median(_busy(clock.sm_mhz))) for clock in (base_clock, head_clock))
        if was and now and abs(now - was) > CLOCK_TOLERANCE * was:
            # What disturbs a GPU changes its clock too.
            (temporary or permanent).append(
                f"different SM clock: {was} MHz in the baseline, {now} MHz here"
            )
    return Reasons(tuple(permanent), tuple(temporary))


def disturbances(
    clock: Clock | None, where: str, *, ignored: frozenset[str] = frozenset()
) -> list[str]:
    """Reasons other than the code that slowed the GPU down, one sentence each."""
    if clock is None:
        return []
    sentences = []
    slowed = [reason for reason in clock.throttle_reasons if reason not in ignored]
    if slowed:
        sentences.append(f"the GPU was throttled {where}: {', '.join(slowed)}")
    processes = clock.other_processes
    if processes:
        sentences.append(f"{processes} other process{'es' * (processes > 1)} used the GPU {where}")
    if clock.profiled:
        sentences.append(f"another profiler was attached {where}: run without it")
    return sentences


def disturbances_of(capture: Capture) -> list[str]:
    """``disturbances`` during the bench of a capture."""
    return disturbances(capture.bench.clock if capture.bench else None, "meanwhile")


def calm(captures: Sequence[Capture]) -> list[Capture]:
    """The captures whose times nothing disturbed; all of them if there is none."""
    return [capture for capture in captures if not disturbances_of(capture)] or list(captures)


def merge_clocks(clocks: Sequence[Clock]) -> Clock | None:
    """The samples of all runs, and everything that disturbed any of them. Each run begins with a
    sample of an idle GPU; only the first of these stays."""
    if not clocks:
        return None

    def joined(runs: Sequence[tuple[N, ...]]) -> tuple[N, ...]:
        return (*runs[0], *(sample for run in runs[1:] for sample in _busy(run)))

    others = [clock.other_processes for clock in clocks if clock.other_processes is not None]
    return Clock(
        sm_mhz=joined([clock.sm_mhz for clock in clocks]),
        memory_mhz=joined([clock.memory_mhz for clock in clocks]),
        temperature_c=joined([clock.temperature_c for clock in clocks]),
        power_w=joined([clock.power_w for clock in clocks]),
        throttle_reasons=tuple(
            sorted({reason for clock in clocks for reason in clock.throttle_reasons})
        ),
        other_processes=max(others, default=None),
        profiled=any(clock.profiled for clock in clocks),
    )


def typical_clock(clock: Clock) -> Clock:
    """One sample of each kind: the median clock, the highest temperature and power."""

    def picked(pick: Callable[[tuple[N, ...]], N], samples: tuple[N, ...]) -> tuple[N, ...]:
        return (pick(_busy(samples)),) if samples else ()

    return replace(
        clock,
        sm_mhz=picked(median_low, clock.sm_mhz),
        memory_mhz=picked(median_low, clock.memory_mhz),
        temperature_c=picked(max, clock.temperature_c),
        power_w=picked(max, clock.power_w),
    )


def _busy(samples: tuple[N, ...]) -> tuple[N, ...]:
    """The samples under load: the first one is of an idle GPU."""
    return samples[1:] or samples


def merge(captures: Sequence[Capture]) -> Capture:
    """The first capture, with the samples of all undisturbed ones, whose runs are numbered in
    order, and every caveat once.

    Raises ValueError when no capture was timed.
    """
    timed = [capture.bench for capture in calm(captures) if capture.bench is not None]
    if not timed:
        raise ValueError("no capture has times")
    samples: list[Samples] = []
    for bench in timed:
        before = 1 + max((sample.run for sample in samples), default=-1)
        samples += [replace(sample, run=before + sample.run) for sample in bench.samples]
    clock = merge_clocks([bench.clock for bench in timed if bench.clock is not None])
    return replace(
        captures[0],
        bench=replace(timed[0], samples=tuple(samples), clock=clock),
        caveats=tuple(dict.fromkeys(caveat for capture in captures for caveat in capture.caveats)),
    )


def by_side(samples: Iterable[Samples]) -> dict[str, dict[str, Samples]]:
    """By phase, and then by name (``eager``): the rounds of all runs, one after the other."""
    phases: dict[str, dict[str, Samples]] = {}
    for run in samples:
        sides = phases.setdefault(run.phase, {})
        before = sides.get(run.name) or replace(run, device_ns=(), host_ns=(), captures=0)
        sides[run.name] = replace(
            before,
            device_ns=before.device_ns + run.device_ns,
            host_ns=before.host_ns + run.host_ns,
            captures=before.captures + run.captures,
        )
    return phases


def by_capture(samples: Samples) -> list[tuple[float, ...]]:
    """Device times, in nanoseconds, of each capture of one side and phase."""
    rounds, count = samples.device_ns, samples.captures
    return [
        rounds[number * len(rounds) // count : (number + 1) * len(rounds) // count]
        for number in range(count)
    ]
