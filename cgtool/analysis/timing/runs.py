"""Several runs of one bench, each from a worker process of its own, as one capture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from cgtool.analysis.timing import comparable
from cgtool.analysis.timing.clocks import merged
from cgtool.model.capture import Capture
from cgtool.model.measurements import Bench, Samples


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
            merged([one.clock for one in timed if one.clock is not None]),
            timed[0].seed,
            timed[0].timer_grain_ns,
        ),
        caveats=caveats,
    )


def calm(captures: Sequence[Capture]) -> list[Capture]:
    """Those whose times nothing disturbed; all, where there is none."""
    return [one for one in captures if not disturbed(one)] or list(captures)


def disturbed(capture: Capture) -> list[str]:
    """What slowed the GPU down while it was timed, for no fault of the code: a sentence each."""
    return comparable.disturbed(capture.bench.clock if capture.bench else None, "meanwhile")


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
