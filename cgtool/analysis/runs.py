"""Several runs of one bench, each from a worker process of its own, as one capture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from cgtool.model.capture import Bench, Capture, Clock, Samples


def merge(captures: Sequence[Capture]) -> Capture:
    """The first capture, with the samples of all, runs numbered through, and every caveat once.

    Raises ValueError when there is none, or none that was timed.
    """
    timed = [one.bench for one in captures if one.bench is not None]
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
            _clock([one.clock for one in timed if one.clock is not None]),
            timed[0].seed,
            timed[0].timer_grain_ns,
        ),
        caveats=caveats,
    )


def _clock(clocks: Sequence[Clock]) -> Clock | None:
    if not clocks:
        return None
    others = [one.other_processes for one in clocks if one.other_processes is not None]
    return Clock(
        sm_mhz=_joined(one.sm_mhz for one in clocks),
        memory_mhz=_joined(one.memory_mhz for one in clocks),
        temperature_c=_joined(one.temperature_c for one in clocks),
        power_w=tuple(watts for one in clocks for watts in one.power_w),
        throttle_reasons=tuple(sorted({each for one in clocks for each in one.throttle_reasons})),
        profiled=any(one.profiled for one in clocks),
        other_processes=max(others, default=None),
    )


def _joined(runs: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """All samples; those that each run began with are idle ones, and only the first stays."""
    first, *rest = runs
    return (*first, *(one for run in rest for one in run[1:]))


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
