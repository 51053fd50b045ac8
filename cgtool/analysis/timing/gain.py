"""Whether a CUDA graph helps, after how many replays its capture has paid for itself, and why not.

The verdict compares eager with replay, timed in interleaved rounds (``bench``); the reasons use the
times of single replays (``Profile``) and of each node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from cgtool.analysis.graph.places import frames_of
from cgtool.analysis.graph.schedule import CriticalPath
from cgtool.analysis.timing.bench import BenchRow, bench_report
from cgtool.analysis.timing.gaps import Timeline
from cgtool.analysis.units import count_text, time_text
from cgtool.findings import code
from cgtool.model.capture import Capture
from cgtool.model.finding import Finding
from cgtool.model.measurements import InputCopy, Profile, whole

CAPTURE_TIME_NOT_AMORTIZED = code("capture-time-not-amortized")
CONCURRENCY_LOST_OR_FALSE_DEPENDENCY = code("concurrency-lost-or-false-dependency")
FIRST_REPLAY_LATENCY = code("first-replay-latency")
INPUT_COPY_DOMINATES = code("input-copy-dominates")
MEMCPY_MEMSET_NODE_OVERHEAD = code("memcpy-memset-node-overhead")
PADDING_WASTE = code("padding-waste")
PER_STEP_SYNC_AROUND_REPLAY = code("per-step-sync-around-replay")
TOO_MANY_SMALL_GRAPHS = code("too-many-small-graphs")

YES, HARDLY, NO, UNKNOWN = "yes", "hardly", "no", "cannot tell"
_GAIN = 1.1
"""A smaller speedup is hardly worth a capture."""
_COPIES_COST = 0.97
"""Copies of inputs that leave more of the speedup than this are not mentioned."""


class Gain(msgspec.Struct, frozen=True):
    """The answer, its figures and its reasons. Times are nanoseconds an iteration."""

    answer: str
    """``yes``, ``hardly`` (less than 1.1 times faster), ``no``, ``cannot tell``."""
    sentence: str
    why: str | None = None
    phase: str | None = None
    """The phase of ``bench`` that the answer is for: the whole iteration."""
    speedup: float | None = None
    speedup_low: float | None = None
    """With ``speedup_high``: its 95% interval."""
    speedup_high: float | None = None
    break_even: int | None = None
    with_copies: float | None = None
    """The speedup when every input is copied into its static tensor before each replay."""
    at_most: float | None = None
    """Eager time divided by the time in which nodes run: the most that a graph can gain."""
    findings: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    """Reasons not to trust the comparison with eager."""

    @property
    def copies_sentence(self) -> str | None:
        """The speedup with copies of the inputs, where they cost enough to mention."""
        copied, speedup = self.with_copies, self.speedup
        if copied is None or speedup is None or copied >= _COPIES_COST * speedup:
            return None
        return f"With a copy of every input before each replay it is {copied:.1f}x."


def judge(capture: Capture, lines: Sequence[Timeline], paths: Sequence[CriticalPath]) -> Gain:
    """The verdict on a capture. ``lines`` and ``paths`` have an element for each graph without a
    parent."""
    compared = bench_report(capture) if capture.bench else None
    rows = {row.phase: row for row in compared.rows} if compared else {}
    row = rows.get(whole(rows))
    profile = capture.profile or Profile("")
    empty_ns = next((median(times.empty_ns) for times in profile.graphs if times.empty_ns), 0.0)
    copies = [(copy, max(copy.copy_ns - empty_ns, 0.0)) for copy in profile.inputs]
    copies_ns = sum(copy_ns for _, copy_ns in copies)
    gain = Gain(
        UNKNOWN,
        "Cannot tell whether a CUDA graph helps: this capture was not timed against eager.",
    )
    if row is not None:
        busy = sum(
            line.busy_ns
            for line in lines
            if row.phase in ("both", capture.graphs[line.graph].phase)
        )
        gain = _verdict(row, copies_ns, busy)
    return msgspec.structs.replace(
        gain,
        findings=(
            *(compared.findings if compared else ()),
            *_copied_inputs(copies, lines, row),
            *_padding(profile.inputs),
            *_small_graphs(capture, lines),
            *_moves(capture),
            *_lost_concurrency(capture, lines, paths),
            *_capture_cost(row),
            *_latency(capture, profile),
        ),
        warnings=compared.warnings if compared else (),
    )


def _verdict(row: BenchRow, copies_ns: float, busy: int) -> Gain:
    low, high = row.speedup_low, row.speedup_high
    digits = 2 if low < 2 or row.speedup < 2 else 1
    faster = f"{row.speedup:.{digits}f}x"
    between = f"(95% CI {low:.{digits}f}x to {high:.{digits}f}x)"
    answer = UNKNOWN
    sentence = f"Cannot tell whether a CUDA graph helps: {faster} the speed of eager {between}."
    if low > 1:
        answer, only = (YES, "") if row.speedup >= _GAIN else (HARDLY, "only ")
        sentence = f"A CUDA graph makes this {only}{faster} faster {between}"
        if row.break_even is not None:
            sentence += f" and pays for its capture after {count_text(row.break_even, 'replay')}"
        sentence += "."
    elif high < _GAIN:
        answer = NO
        result = "makes this slower" if high < 1 else "gains nothing here"
        sentence = f"A CUDA graph {result}: {faster} the speed of eager {between}."
    return Gain(
        answer,
        sentence,
        _why(row, answer, busy),
        row.phase,
        row.speedup,
        low,
        high,
        row.break_even,
        row.eager_ns / (row.replay_ns + copies_ns) if copies_ns else None,
        row.eager_ns / busy if busy else None,
    )


def _why(row: BenchRow, answer: str, busy: int) -> str | None:
    if not busy or not row.eager_ns:
        return None
    eager, work = time_text(row.eager_ns), time_text(busy)
    host = time_text(row.eager_host_ns)
    if answer in (YES, UNKNOWN):
        if row.eager_host_ns >= busy:
            return f"Eager is launch-bound: the host takes {host} to launch {work} of GPU work."
        return f"Eager takes {eager} for {work} of GPU work, which the host launches in {host}."
    return (
        f"{work} of eager's {eager} is GPU work ({min(1.0, busy / row.eager_ns):.0%}), which a "
        f"graph does not shorten: it can gain at most {max(1.0, row.eager_ns / busy):.2f}x."
    )


_MANY_REPLAYS = 10_000
_MANY_GRAPHS = 3
"""A forward, its backward and one more; most workloads have no more graphs."""
_FIRST_NS = 100e3
_WAIT = 0.25
"""Time that a synchronize adds to a replay, as a share of it, from which it is a finding."""
_PADDED = 0.5
"""Share of an input's rows that look like padding, from which that is a finding."""
_MOVES = 0.4
"""Share of the nodes' time in copies, casts and fills, from which that is a finding."""
_MIN_POSSIBLE_OVERLAP, _MAX_ACTUAL_OVERLAP = 0.2, 0.25
"""Overlap is lost if it could cover the first share of the work, and covered less than the
second share of that."""
_MOVING_OPS = frozenset(
    (
        "aten::copy_", "aten::_to_copy", "aten::clone", "aten::fill_", "aten::zero_",
        "aten::zeros", "aten::contiguous", "aten::zeros_like", "aten::_foreach_zero_",
        "aten::_foreach_copy_",
    )
)  # fmt: skip


def _capture_cost(row: BenchRow | None) -> Iterator[Finding]:
    if row is not None and row.break_even is not None and row.break_even > _MANY_REPLAYS:
        yield Finding(
            CAPTURE_TIME_NOT_AMORTIZED,
            f"a replay saves {time_text(row.eager_ns - row.replay_ns)}, so the capture pays for "
            f"itself only after {row.break_even:,} replays",
            phase=row.phase,
        )


def _copied_inputs(
    copies: Sequence[tuple[InputCopy, float]], lines: Sequence[Timeline], row: BenchRow | None
) -> Iterator[Finding]:
    """``copies``: the inputs, and the nanoseconds to copy each from elsewhere on the device."""
    cost = sum(copy_ns for _, copy_ns in copies)
    total = sum(line.replay_ns or 0.0 for line in lines)
    saved = row.eager_ns - row.replay_ns if row is not None else 0.0
    eats_gain = 0 < saved <= cost
    if not cost or not total or not (eats_gain or cost >= total):
        return
    reason = f"copying the inputs takes {time_text(cost)} before each replay of {time_text(total)}"
    if eats_gain:
        reason += f", and the replay saves {time_text(saved)}"
    evidence = []
    for copy, copy_ns in sorted(copies, key=lambda item: -item[0].copy_ns)[:3]:
        text = f"{copy.name}: {copy.bytes / 2**20:.1f} MiB, {time_text(copy_ns)} from the device"
        if copy.host_copy_ns:
            text += f", {time_text(copy.host_copy_ns)} from pinned memory"
        evidence.append(text)
    yield Finding(INPUT_COPY_DOMINATES, reason, evidence=tuple(evidence))


def _padding(inputs: Sequence[InputCopy]) -> Iterator[Finding]:
    padded = [
        (copy.padding_rows / copy.rows, copy)
        for copy in inputs
        if copy.rows and copy.padding_rows and copy.padding_rows >= _PADDED * copy.rows
    ]
    if padded:
        _, worst = max(padded, key=lambda item: item[0])
        yield Finding(
            PADDING_WASTE,
            f"{worst.padding_rows} of the {worst.rows} rows of {worst.name} hold a single value: "
            "if that is padding, each replay computes it",
            evidence=tuple(
                f"{copy.name}: {copy.padding_rows} of {copy.rows} rows" for _, copy in padded
            ),
        )


def _small_graphs(capture: Capture, lines: Sequence[Timeline]) -> Iterator[Finding]:
    small = [
        (line, median(launches))
        for line in lines
        if line.replay_ns is not None
        and (launches := capture.graphs[line.graph].launch_ns)
        and line.replay_ns < median(launches)
    ]
    if len(small) < _MANY_GRAPHS:
        return
    host = sum(launch for _, launch in small)
    device = sum(line.replay_ns or 0 for line, _ in small)
    yield Finding(
        TOO_MANY_SMALL_GRAPHS,
        f"{len(small)} graphs are shorter than their launch: the host takes {time_text(host)} to "
        f"launch {time_text(device)} of GPU work",
        evidence=tuple(
            f"{line.name}: {line.nodes} nodes, {time_text(line.replay_ns or 0)}, launched in "
            f"{time_text(launch)}"
            for line, launch in small[:4]
        ),
    )


def _moves(capture: Capture) -> Iterator[Finding]:
    """Copies, casts and fills by their time; ``check`` counts them."""
    origins: Counter[int | None] = Counter()
    total = count = nodes = 0
    for graph in capture.graphs:
        for node in graph.nodes:
            nodes += node.duration_ns is not None
            total += node.duration_ns or 0
            origin = None if node.origin is None else capture.origins[node.origin]
            op = origin.op.partition(".")[0] if origin is not None and origin.op else None
            if node.type in ("memcpy", "memset") or op in _MOVING_OPS:
                count += 1
                origins[node.origin] += node.duration_ns or 0
    moving = origins.total()
    if not total or moving < _MOVES * total:
        return
    index = origins.most_common(1)[0][0]
    origin = None if index is None else capture.origins[index]
    yield Finding(
        MEMCPY_MEMSET_NODE_OVERHEAD,
        f"copies, casts and fills take {time_text(moving)} of {time_text(total)} of GPU work "
        f"({moving / total:.0%}, {count} of {nodes} nodes), most of it from here",
        frames_of(capture, index),
        module=origin.module if origin is not None else None,
    )


def _lost_concurrency(
    capture: Capture, lines: Sequence[Timeline], paths: Sequence[CriticalPath]
) -> Iterator[Finding]:
    """Branches that did not overlap although the edges allow it."""
    for line, path in zip(lines, paths, strict=True):
        could, did = line.work_ns - path.length_ns, line.work_ns - line.busy_ns
        if (
            line.span_ns is None
            or could < _MIN_POSSIBLE_OVERLAP * line.work_ns
            or did > _MAX_ACTUAL_OVERLAP * could
        ):
            continue
        yield Finding(
            CONCURRENCY_LOST_OR_FALSE_DEPENDENCY,
            f"{line.name}: branches of the graph could overlap for {time_text(could)} and did for "
            f"{time_text(did)}: kernels that fill the GPU leave no room, or the branches share a "
            "hardware queue",
            phase=capture.graphs[line.graph].phase,
            fix="make the kernels of one branch smaller, or leave the second stream out; "
            "CUDA_DEVICE_MAX_CONNECTIONS=32 for many branches",
            evidence=(
                f"sum of its nodes {time_text(line.work_ns)}, critical path "
                f"{time_text(path.length_ns)}, busy {time_text(line.busy_ns)}",
            ),
        )


def _latency(capture: Capture, profile: Profile) -> Iterator[Finding]:
    """The first replay, and a synchronize after each."""
    measured = [times for times in profile.graphs if times.synced_ns and times.queued_ns]
    if not measured:
        return
    synced = sum(median(times.synced_ns) for times in measured)
    queued = sum(times.queued_ns or 0.0 for times in measured)
    first = [times.first_ns for times in measured if times.first_ns is not None]
    every = "each of its graphs" if len(measured) > 1 else "the graph"
    if len(first) == len(measured) and sum(first) - synced >= max(_FIRST_NS, synced):
        instantiate = sum(capture.graphs[times.graph].instantiate_ns or 0 for times in measured)
        yield Finding(
            FIRST_REPLAY_LATENCY,
            f"the first replay of {every} takes {time_text(sum(first))}, later ones take "
            f"{time_text(synced)}",
            evidence=(f"instantiating took {time_text(instantiate)} before",),
        )
    if synced - queued >= _WAIT * queued:
        yield Finding(
            PER_STEP_SYNC_AROUND_REPLAY,
            f"a loop that synchronizes after each replay of {every} (.item(), print, synchronize) "
            f"takes {time_text(synced)} per iteration instead of {time_text(queued)}: "
            f"{synced / queued - 1:.0%} more",
        )
