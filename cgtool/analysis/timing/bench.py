"""What ``cgtool bench`` found: one row a phase, and what makes it doubtful."""

from __future__ import annotations

import math
from statistics import median

import msgspec

from cgtool.analysis.timing import bench_findings, stats
from cgtool.analysis.timing.bench_verdicts import PhaseVerdict
from cgtool.analysis.timing.runs import by_side
from cgtool.model.capture import Capture
from cgtool.model.finding import Finding
from cgtool.model.measurements import Bench, Samples

ENOUGH_ROUNDS = 10
WIDE_SPREAD = 0.03
DRIFTED = 0.02


class BenchRow(msgspec.Struct, frozen=True):
    """One phase. Times are nanoseconds an iteration, medians over the rounds."""

    phase: str
    eager_ns: float
    replay_ns: float
    eager_host_ns: float
    replay_host_ns: float
    eager_spread: float | None
    """None when there are too few rounds to know."""
    replay_spread: float | None
    speedup: float
    speedup_low: float
    speedup_high: float
    rounds: int
    behind: str | None
    """The phase that ran, untimed, right before each iteration of both sides."""
    break_even: int | None
    """Replays after which capturing has paid for itself; None when replay is not faster."""


class BenchReport(msgspec.Struct, frozen=True):
    """All phases, and one sentence for each doubt."""

    device: str
    rows: tuple[BenchRow, ...]
    doubts: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    """Why there is no gain, or too much of it."""
    runs: int = 1
    """Worker processes that measured."""
    against: str | None = None
    """The baseline's file, or the other entry."""
    verdicts: tuple[PhaseVerdict, ...] = ()
    """Slower than that, not slower, or cannot tell."""
    notes: tuple[str, ...] = ()
    """What the reader must know to judge the verdicts."""


def report(capture: Capture) -> BenchReport:
    """Rows and doubts of a capture that has bench samples. Raises ValueError when it has none."""
    bench = capture.bench
    if bench is None:
        raise ValueError("the capture holds no timings")
    by_phase = by_side(bench.samples)
    rows = []
    for phase, sides in by_phase.items():
        if "eager" in sides and "replay" in sides and all(map(_timed, sides.values())):
            rows.append(_row(capture, phase, sides["eager"], sides["replay"]))
    timed = [
        bench_findings.Timed(
            row.phase, row.eager_ns, row.eager_host_ns, row.replay_ns, row.speedup_high
        )
        for row in rows
    ]
    return BenchReport(
        capture.environment.device,
        tuple(rows),
        tuple(_doubts(bench, rows)),
        bench_findings.look(capture, timed),
        runs=1 + max((one.run for one in bench.samples), default=0),
    )


def _timed(one: Samples) -> bool:
    return bool(one.device_ns and one.host_ns)


def _row(capture: Capture, phase: str, eager: Samples, replay: Samples) -> BenchRow:
    eager_ns, replay_ns = median(eager.device_ns), median(replay.device_ns)
    low, high = stats.ratio_interval(eager.device_ns, replay.device_ns)
    phases = {"both": ("forward", "backward")}.get(phase, (phase,))
    cost = sum(
        (graph.capture_ns or 0) + (graph.instantiate_ns or 0) + (graph.upload_ns or 0)
        for graph in capture.graphs
        if graph.phase in phases
    )
    saved = eager_ns - replay_ns
    return BenchRow(
        phase,
        eager_ns,
        replay_ns,
        median(eager.host_ns),
        median(replay.host_ns),
        stats.spread(eager.device_ns),
        stats.spread(replay.device_ns),
        eager_ns / replay_ns if replay_ns else math.inf,
        low,
        high,
        min(len(eager.device_ns), len(replay.device_ns)),
        eager.behind if eager.behind == replay.behind else None,
        math.ceil(cost / saved) if saved > 0 else None,
    )


def _doubts(bench: Bench, rows: list[BenchRow]) -> list[str]:
    found = []
    few = [row for row in rows if row.rounds < ENOUGH_ROUNDS]
    if few:
        count = few[0].rounds
        found.append(
            f"only {count} {'round' if count == 1 else 'rounds'}: the interval is a guess; "
            "raise --rounds or --max-seconds"
        )
    timed = [side for sides in by_side(bench.samples).values() for side in sides.values()]
    wide = {
        f"{one.name} {one.phase}": spread
        for one in timed
        if (spread := stats.spread(one.device_ns)) is not None and spread > WIDE_SPREAD
    }
    if wide:
        found.append(
            f"{', '.join(wide)} varied by {'up to ' * (len(wide) > 1)}±{max(wide.values()):.1%} "
            "from round to round: another program may share the GPU or the CPU; measure on a quiet "
            "machine"
        )
    for one in timed:
        moved = stats.drift(one.device_ns)
        if abs(moved) > DRIFTED and one.name == "replay":
            found.append(
                f"replay {one.phase} drifted by {moved:+.1%} from the first rounds to the last: "
                "the GPU was still changing its clock; measure longer"
            )
        if bench.timer_grain_ns and one.device_ns:
            window = median(one.device_ns) * one.iterations
            if window < 100 * bench.timer_grain_ns:
                found.append(
                    f"{one.name} {one.phase}: {window / 1e3:.1f} us between events is near the "
                    f"timer's grain of {bench.timer_grain_ns / 1e3:g} us"
                )
    clock = bench.clock
    if clock is None or not clock.sm_mhz:
        found.append("the GPU's clock is not known: install nvidia-ml-py to have it watched")
    if clock is not None:
        if clock.profiled:
            found.append("another profiler was attached, which makes everything take longer")
        if clock.throttle_reasons:
            found.append(f"the GPU slowed itself down: {', '.join(clock.throttle_reasons)}")
        busy = clock.sm_mhz[1:]
        if busy and min(busy) < 0.9 * max(busy):
            found.append(
                f"the SM clock moved between {min(busy)} and {max(busy)} MHz while measuring"
            )
    return found
