"""Will graphs help here, after how many replays has the capture paid for itself, and if not, why.

The verdict rests on eager against replay, timed interleaved (``bench``); the reasons on what was
measured around single replays (``Profile``) and on the time of each node.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cgtool.analysis.graph.critical_path import Path
from cgtool.analysis.timing import bench
from cgtool.analysis.timing.bench import BenchReport, BenchRow
from cgtool.analysis.timing.durations import time_text
from cgtool.analysis.timing.gain_findings import copies_ns, findings_of
from cgtool.analysis.timing.gaps import Timeline
from cgtool.model.capture import Capture, Graph
from cgtool.model.finding import Finding
from cgtool.model.measurements import whole

YES, HARDLY, NO, UNKNOWN = "yes", "hardly", "no", "cannot tell"
_GAIN = 1.1
"""Less is hardly worth a capture."""


class Gain(msgspec.Struct, frozen=True):
    """The answer, its figures and its reasons. Times are nanoseconds an iteration."""

    answer: str
    """``yes``, ``hardly`` (less than 1.1 times faster), ``no``, ``cannot tell``."""
    sentence: str
    why: str | None = None
    """Where the gain comes from, or why there is none."""
    phase: str | None = None
    """The phase of ``bench`` that the answer is for: the whole iteration."""
    speedup: float | None = None
    speedup_low: float | None = None
    """With ``speedup_high``: its 95 % interval."""
    speedup_high: float | None = None
    break_even: int | None = None
    """Replays after which the capture has paid for itself."""
    with_copies: float | None = None
    """The speed-up when every input is copied into its static tensor before each replay."""
    at_most: float | None = None
    """Eager time over the time in which nodes run: more than that no graph can gain."""
    findings: tuple[Finding, ...] = ()
    doubts: tuple[str, ...] = ()
    """What makes the comparison with eager doubtful."""


def judge(capture: Capture, lines: Sequence[Timeline], paths: Sequence[Path]) -> Gain:
    """``lines`` and ``paths`` hold one for each graph that is replayed by itself."""
    compared = bench.report(capture) if capture.bench else None
    row = _whole(compared)
    copies = copies_ns(capture)
    made = Gain(
        UNKNOWN,
        "Cannot tell whether a graph helps: this capture was not timed against eager.",
    )
    if row is not None:
        busy = sum(one.busy_ns for one in lines if _covers(row, capture.graphs[one.graph]))
        made = _verdict(row, copies, busy)
    found = compared.findings if compared else ()
    found += tuple(findings_of(capture, lines, paths, row, copies))
    return msgspec.structs.replace(made, findings=found, doubts=compared.doubts if compared else ())


def _whole(compared: BenchReport | None) -> BenchRow | None:
    rows = {one.phase: one for one in compared.rows} if compared else {}
    return rows.get(whole(rows))


def _covers(row: BenchRow, graph: Graph) -> bool:
    return graph.parent is None and row.phase in ("both", graph.phase)


def _verdict(row: BenchRow, copies: float, busy: int) -> Gain:
    low, high = row.speedup_low, row.speedup_high
    between = f"{low:.2f}–{high:.2f}" if low < 2 else f"{low:.1f}–{high:.1f}"
    faster = f"{row.speedup:.2f}" if row.speedup < 2 else f"{row.speedup:.1f}"
    paid = ""
    if row.break_even is not None:
        paid = f"; the capture has paid for itself after {row.break_even:,} replays"
    at_most = row.eager_ns / busy if busy else None
    if low > 1:
        answer = YES if row.speedup >= _GAIN else HARDLY
        sentence = f"{answer.capitalize()}: {faster} times faster ({between}){paid}."
    elif high < 1:
        answer, sentence = NO, f"No: replays are slower, {faster} times as fast ({between})."
    elif high < _GAIN:
        answer, sentence = NO, f"No: replays are as fast as eager ({faster} times, {between})."
    else:
        answer = UNKNOWN
        sentence = f"Cannot tell: {faster} times as fast as eager, but {between} is possible."
    return Gain(
        answer,
        sentence,
        _why(row, answer, busy, at_most),
        row.phase,
        row.speedup,
        low,
        high,
        row.break_even,
        row.eager_ns / (row.replay_ns + copies) if copies else None,
        at_most,
    )


def _why(row: BenchRow, answer: str, busy: int, at_most: float | None) -> str | None:
    if not busy or not row.eager_ns or at_most is None:
        return None
    eager, work = time_text(row.eager_ns), time_text(busy)
    if answer in (YES, UNKNOWN):
        return (
            f"eager takes {eager} for {work} of work on the GPU: the host needs "
            f"{time_text(row.eager_host_ns)} to launch it"
        )
    return (
        f"of eager's {eager} the GPU works {work} ({min(1.0, busy / row.eager_ns):.0%}), which no "
        f"graph makes shorter: {max(1.0, at_most):.2f} times is the most that one could gain"
    )
