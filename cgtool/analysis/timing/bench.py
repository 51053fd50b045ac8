"""The report of ``cgtool bench``: a row per phase, warnings, findings, and a verdict on each phase
that is compared with a baseline or with another entry."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

import msgspec

from cgtool.analysis.gate.metrics import BY_NAME, runs_of
from cgtool.analysis.gate.verdict import BaselineComparison, compare_with_baseline
from cgtool.analysis.graph.places import short_op
from cgtool.analysis.reports import quoted
from cgtool.analysis.timing import stats
from cgtool.analysis.timing.regression import CANNOT_TELL, SLOWER, Answer, judge_pairs
from cgtool.analysis.timing.runs import by_capture, by_side, disturbances
from cgtool.analysis.units import count_text, time_text
from cgtool.findings import code
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture, Graph
from cgtool.model.failure import EXIT_FOUND, EXIT_OK, EXIT_UNKNOWN
from cgtool.model.finding import Finding
from cgtool.model.measurements import Bench, Clock, Samples

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
    """None if there are too few rounds."""
    replay_spread: float | None
    speedup: float
    speedup_low: float
    speedup_high: float
    rounds: int
    behind: str | None
    """The phase that ran, untimed, right before each iteration of both sides."""
    break_even: int | None
    """Replays after which capturing has paid for itself; None when replay is not faster."""


class TwoLevels(msgspec.Struct, frozen=True):
    """The rounds of one capture took one of two times. Times are nanoseconds an iteration."""

    side: str
    """``eager``, ``replay`` or ``against``."""
    phase: str
    run: int
    low_ns: float
    high_ns: float
    low_rounds: int
    high_rounds: int
    changes: int
    """How often a round was at another level than the round before it."""


class BenchReport(msgspec.Struct, frozen=True):
    """All phases, and a warning for each reason not to trust the times."""

    device: str
    rows: tuple[BenchRow, ...]
    warnings: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    """Why there is no gain, or an implausible one."""
    runs: int = 1
    against: str | None = None
    """The baseline's file, or the other entry."""
    verdicts: tuple[PhaseVerdict, ...] = ()
    notes: tuple[str, ...] = ()
    levels: tuple[TwoLevels, ...] = ()
    """Runs whose rounds took one of two times: a figure is then one of the two, or between."""


def bench_report(capture: Capture) -> BenchReport:
    """Rows and warnings of a capture with bench samples. Raises ValueError when it has none."""
    bench = capture.bench
    if bench is None:
        raise ValueError("the capture has no times")
    rows = [
        _row(capture, phase, sides["eager"], sides["replay"])
        for phase, sides in by_side(bench.samples).items()
        if {"eager", "replay"} <= sides.keys()
        and all(side.device_ns and side.host_ns for side in sides.values())
    ]
    findings = [finding for row in rows for finding in _gain(row)]
    findings += [finding for graph in capture.graphs for finding in _of_graph(capture, graph)]
    levels = tuple(each for samples in bench.samples for each in _levels(samples))
    return BenchReport(
        capture.environment.device,
        tuple(rows),
        tuple(_warnings(bench, rows, levels)),
        quoted(findings, capture.sources),
        runs=1 + max((samples.run for samples in bench.samples), default=0),
        levels=levels,
    )


def _levels(samples: Samples) -> Iterator[TwoLevels]:
    # Captures differ by where their memory is: each is a series of its own.
    for rounds in by_capture(samples):
        levels = stats.two_levels(rounds)
        if levels is not None:
            at_high = levels.at_high
            yield TwoLevels(
                samples.name,
                samples.phase,
                samples.run,
                levels.low,
                levels.high,
                at_high.count(False),
                at_high.count(True),
                sum(before != after for before, after in pairwise(at_high)),
            )


def _row(capture: Capture, phase: str, eager: Samples, replay: Samples) -> BenchRow:
    eager_ns, replay_ns = median(eager.device_ns), median(replay.device_ns)
    low, high = stats.ratio_interval(eager.device_ns, replay.device_ns)
    phases = {"both": ("forward", "backward")}.get(phase, (phase,))
    cost = sum(graph.cost_ns for graph in capture.graphs if graph.phase in phases)
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


def _warnings(bench: Bench, rows: list[BenchRow], levels: Sequence[TwoLevels]) -> Iterator[str]:
    if few := [row for row in rows if row.rounds < ENOUGH_ROUNDS]:
        yield (
            f"only {count_text(few[0].rounds, 'round')}: the interval is not reliable; "
            "raise --rounds or --max-seconds"
        )
    by_name = {(each.side, each.phase): each for each in reversed(levels)}
    for each in by_name.values():
        yield (
            f"{each.side} {each.phase} has two speeds: {time_text(each.low_ns)} in "
            f"{count_text(each.low_rounds, 'round')} and {time_text(each.high_ns)} in "
            f"{each.high_rounds} ({each.high_ns / each.low_ns - 1:+.1%}), with "
            f"{count_text(each.changes, 'change')} between them; another measurement may see only "
            "one of the two: raise --rounds or --runs to see how often each occurs"
        )
    timed = [
        side
        for sides in by_side(bench.samples).values()
        for side in sides.values()
        if (side.name, side.phase) not in by_name
    ]
    spreads = {f"{side.name} {side.phase}": stats.spread(side.device_ns) or 0.0 for side in timed}
    if wide := {name: spread for name, spread in spreads.items() if spread > WIDE_SPREAD}:
        yield (
            f"{', '.join(wide)} varied by {'up to ' * (len(wide) > 1)}±{max(wide.values()):.1%} "
            "from round to round: another program may be using the GPU or the CPU; measure "
            "on an idle "
            "machine"
        )
    for side in timed:
        moved = stats.drift(side.device_ns)
        if abs(moved) > DRIFTED and side.name == "replay":
            yield (
                f"replay {side.phase} drifted by {moved:+.1%} from the first rounds to the last: "
                "the GPU was still changing its clock; raise --rounds"
            )
        if bench.timer_grain_ns and side.device_ns:
            window = median(side.device_ns) * side.iterations
            if window < 100 * bench.timer_grain_ns:
                yield (
                    f"{side.name} {side.phase}: {window / 1e3:.1f} us between events is close to "
                    f"the timer's resolution of {bench.timer_grain_ns / 1e3:g} us"
                )
    clock = bench.clock or Clock()
    if not clock.sm_mhz:
        yield "the GPU's clock is unknown: `pip install nvidia-ml-py` to check it"
    if clock.profiled:
        yield "another profiler was attached, which makes everything slower"
    if clock.throttle_reasons:
        yield f"the GPU was throttled: {', '.join(clock.throttle_reasons)}"
    busy = clock.sm_mhz[1:]
    if busy and min(busy) < 0.9 * max(busy):
        yield f"the SM clock varied between {min(busy)} and {max(busy)} MHz while measuring"


REPLAY = BY_NAME["replay-us"]
NS = 1e3
"""Nanoseconds per microsecond, the unit of the metric."""


class PhaseVerdict(msgspec.Struct, frozen=True):
    """One phase. Times are nanoseconds a replay."""

    phase: str
    base_ns: float
    """The time of the baseline, or of the other entry."""
    head_ns: float
    answer: Answer | None
    """None if the two must not be compared; ``reasons`` says why."""
    reasons: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return CANNOT_TELL if self.answer is None else self.answer.verdict


def against_baseline(
    base: Baseline, now: Baseline, tolerance: float, looks: int
) -> dict[str, BaselineComparison]:
    """Replays of each phase that both have. The level is shared between looks and phases."""
    phases = [
        phase
        for phase in dict.fromkeys(phase.phase for phase in now.samples)
        if runs_of(base, REPLAY, phase) and runs_of(now, REPLAY, phase)
    ]
    return {
        phase: compare_with_baseline(
            base, now, REPLAY, phase, tolerance, looks=looks, among=len(phases)
        )
        for phase in phases
    }


def verdicts(comparisons: Mapping[str, BaselineComparison]) -> tuple[PhaseVerdict, ...]:
    """The comparisons with a baseline, as the report has them."""
    return tuple(
        PhaseVerdict(phase, NS * each.base, NS * each.here, each.answer, each.reasons.all)
        for phase, each in comparisons.items()
    )


def against_entry(capture: Capture, tolerance: float) -> tuple[PhaseVerdict, ...]:
    """The verdict on the pairs of a capture that was timed against another entry."""
    bench = capture.bench
    if bench is None:
        return ()
    reasons = tuple(disturbances(bench.clock, "meanwhile"))
    verdicts = []
    for phase, sides in by_side(bench.samples).items():
        if "against" in sides and "replay" in sides:
            base, head = sides["against"], sides["replay"]
            answer = None
            if not reasons:
                answer = judge_pairs(by_capture(base), by_capture(head), tolerance)
            times = stats.midmean(base.device_ns), stats.midmean(head.device_ns)
            verdicts.append(PhaseVerdict(phase, *times, answer, reasons))
    return tuple(verdicts)


def exit_code(verdicts: Iterable[PhaseVerdict]) -> int:
    """1 when a phase is slower; else 5 when the answer for a phase is "cannot tell"."""
    answers = {verdict.verdict for verdict in verdicts}
    if SLOWER in answers:
        return EXIT_FOUND
    return EXIT_UNKNOWN if CANNOT_TELL in answers else EXIT_OK


GPU_BOUND_NO_GAIN = code("gpu-bound-no-gain")
REPLAY_EXTRA_FILL_KERNELS = code("replay-extra-fill-kernels")

_NO_GAIN = 1.1
_TINY = 8
"""Nodes of a graph in which two fills are seen."""
_RANDOM = frozenset(
    (
        "native_dropout", "rand", "randn", "rand_like", "randn_like", "randint", "randint_like",
        "bernoulli", "bernoulli_", "normal", "normal_", "uniform_", "exponential_", "random_",
        "randperm", "multinomial", "cauchy_", "log_normal_", "geometric_",
    )
)  # fmt: skip


def _gain(row: BenchRow) -> Iterator[Finding]:
    if row.speedup_high < _NO_GAIN and row.eager_host_ns < row.eager_ns:
        yield Finding(
            GPU_BOUND_NO_GAIN,
            f"{row.phase}: eager takes {row.eager_ns / 1e3:.0f} us and a replay "
            f"{row.replay_ns / 1e3:.0f} us on the GPU, while the host takes only "
            f"{row.eager_host_ns / 1e3:.0f} us to launch it: the launches are already hidden",
            phase=row.phase,
        )


def _of_graph(capture: Capture, graph: Graph) -> Iterator[Finding]:
    count = len(graph.nodes)
    origins = (capture.origins[node.origin] for node in graph.nodes if node.origin is not None)
    names = (short_op(origin.op) for origin in origins if origin.op)
    random = [name for name in names if name in _RANDOM] if count <= _TINY else []
    if random:
        yield Finding(
            REPLAY_EXTRA_FILL_KERNELS,
            f"{graph.name} has {count} nodes and draws random numbers: two fills, of seed and "
            "offset, run before every replay",
            phase=graph.phase,
            evidence=(f"random: {', '.join(dict.fromkeys(random))}",),
        )
