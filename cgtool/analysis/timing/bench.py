"""The report of ``cgtool bench``: one row a phase, warnings, findings, and a verdict on each phase
that is compared with a baseline or with another entry."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

import msgspec

from cgtool.analysis.gate.metrics import BY_NAME, runs_of
from cgtool.analysis.gate.times import BaselineComparison, compare_with_baseline
from cgtool.analysis.graph.places import short_op
from cgtool.analysis.timing import stats
from cgtool.analysis.timing.regression import CANNOT_TELL, SLOWER, Answer, judge_pairs
from cgtool.analysis.timing.runs import by_capture, by_side, disturbances
from cgtool.analysis.timing.stats import midmean
from cgtool.findings.registry import code
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture, Frame, Graph
from cgtool.model.failure import EXIT_FOUND, EXIT_OK, EXIT_UNKNOWN
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


def bench_report(capture: Capture) -> BenchReport:
    """Rows and doubts of a capture that has bench samples. Raises ValueError when it has none."""
    bench = capture.bench
    if bench is None:
        raise ValueError("the capture holds no timings")
    by_phase = by_side(bench.samples)
    rows = []
    for phase, sides in by_phase.items():
        if "eager" in sides and "replay" in sides and all(map(_timed, sides.values())):
            rows.append(_row(capture, phase, sides["eager"], sides["replay"]))
    return BenchReport(
        capture.environment.device,
        tuple(rows),
        tuple(_doubts(bench, rows)),
        _findings(capture, rows),
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
            found.append(f"the GPU was throttled: {', '.join(clock.throttle_reasons)}")
        busy = clock.sm_mhz[1:]
        if busy and min(busy) < 0.9 * max(busy):
            found.append(
                f"the SM clock moved between {min(busy)} and {max(busy)} MHz while measuring"
            )
    return found


REPLAY = BY_NAME["replay-us"]
NS = 1e3
"""Of a microsecond, the unit of the metric."""


class PhaseVerdict(msgspec.Struct, frozen=True):
    """One phase. Times are nanoseconds a replay."""

    phase: str
    base_ns: float
    """Of the baseline, or of the other entry."""
    head_ns: float
    answer: Answer | None
    """None where the two must not be compared."""
    reasons: tuple[str, ...] = ()
    """Why they must not."""

    @property
    def verdict(self) -> str:
        return CANNOT_TELL if self.answer is None else self.answer.verdict


def against_baseline(
    base: Baseline, now: Baseline, tolerance: float, looks: int
) -> dict[str, BaselineComparison]:
    """Replays of each phase that both have. The level is shared between looks and phases."""
    phases = [
        one
        for one in dict.fromkeys(one.phase for one in now.samples)
        if runs_of(base, REPLAY, one) and runs_of(now, REPLAY, one)
    ]
    return {
        one: compare_with_baseline(
            base, now, REPLAY, one, tolerance, looks=looks, among=len(phases)
        )
        for one in phases
    }


def verdicts(held: Mapping[str, BaselineComparison]) -> tuple[PhaseVerdict, ...]:
    """What was held against a baseline, as the report has it."""
    return tuple(
        PhaseVerdict(phase, NS * one.base, NS * one.here, one.answer, one.reasons.all)
        for phase, one in held.items()
    )


def against_entry(capture: Capture, tolerance: float) -> tuple[PhaseVerdict, ...]:
    """The verdict on the pairs of a capture that was timed against another entry."""
    bench = capture.bench
    if bench is None:
        return ()
    reasons = tuple(disturbances(bench.clock, "meanwhile"))
    found = []
    for phase, sides in by_side(bench.samples).items():
        if "against" in sides and "replay" in sides:
            base, head = sides["against"], sides["replay"]
            answer = None
            if not reasons:
                answer = judge_pairs(by_capture(base), by_capture(head), tolerance, looks=1)
            found.append(
                PhaseVerdict(
                    phase, midmean(base.device_ns), midmean(head.device_ns), answer, reasons
                )
            )
    return tuple(found)


def exit_code(verdicts: Iterable[PhaseVerdict]) -> int:
    """1 when a phase is slower, 5 when none is and one cannot be told."""
    seen = {one.verdict for one in verdicts}
    if SLOWER in seen:
        return EXIT_FOUND
    return EXIT_UNKNOWN if CANNOT_TELL in seen else EXIT_OK


GPU_BOUND_NO_GAIN = code("gpu-bound-no-gain")
REPLAY_EXTRA_FILL_KERNELS = code("replay-extra-fill-kernels")
SPEEDUP_TOO_GOOD = code("speedup-too-good")

_NO_GAIN = 1.1
_TINY = 8
"""Nodes of a graph in which two fills are seen."""
_MISSING = 0.8
_RANDOM = frozenset(
    (
        "native_dropout", "rand", "randn", "rand_like", "randn_like", "randint", "randint_like",
        "bernoulli", "bernoulli_", "normal", "normal_", "uniform_", "exponential_", "random_",
        "randperm", "multinomial", "cauchy_", "log_normal_", "geometric_",
    )
)  # fmt: skip


def _findings(capture: Capture, rows: Iterable[BenchRow]) -> tuple[Finding, ...]:
    """Findings of a capture that was timed."""
    found = [one for row in rows for one in _gain(row)]
    for graph in capture.graphs:
        found += [*_fills(capture, graph), *_missing(capture, graph)]
    return tuple(found)


def _gain(row: BenchRow) -> Iterator[Finding]:
    if row.speedup_high < _NO_GAIN and row.eager_host_ns < row.eager_ns:
        yield Finding(
            GPU_BOUND_NO_GAIN,
            f"{row.phase}: the GPU works for {row.eager_ns / 1e3:.0f} us in eager mode and "
            f"{row.replay_ns / 1e3:.0f} us in a replay, while the host needs only "
            f"{row.eager_host_ns / 1e3:.0f} us to launch it: launches are hidden already",
            phase=row.phase,
        )


def _op_names(capture: Capture, graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.origin is not None and (op := capture.origins[node.origin].op):
            yield short_op(op)


def _fills(capture: Capture, graph: Graph) -> Iterator[Finding]:
    random = [name for name in _op_names(capture, graph) if name in _RANDOM]
    if random and len(graph.nodes) <= _TINY:
        yield Finding(
            REPLAY_EXTRA_FILL_KERNELS,
            f"{graph.name} has {len(graph.nodes)} nodes and draws random numbers: two fills of "
            "seed and offset run before every replay",
            phase=graph.phase,
            evidence=(f"random: {', '.join(dict.fromkeys(random))}",),
        )


def _missing(capture: Capture, graph: Graph) -> Iterator[Finding]:
    eager = graph.eager_launches
    if not eager or len(graph.nodes) >= _MISSING * eager:
        return
    frames: tuple[Frame, ...] = ()
    if graph.eager_only:
        origin = capture.origins[graph.eager_only[0]]
        frames = tuple(capture.frames[index] for index in origin.frames)
    yield Finding(
        SPEEDUP_TOO_GOOD,
        f"{graph.name} has {len(graph.nodes)} nodes where an eager iteration launches {eager}: "
        "work is missing from the graph",
        frames,
        phase=graph.phase,
    )
