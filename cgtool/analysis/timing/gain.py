"""Will graphs help here, after how many replays has the capture paid for itself, and if not, why.

The verdict rests on eager against replay, timed interleaved (``bench``); the reasons on what was
measured around single replays (``Profile``) and on the time of each node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from cgtool.analysis.graph.schedule import Path
from cgtool.analysis.timing import bench
from cgtool.analysis.timing.bench import BenchReport, BenchRow
from cgtool.analysis.timing.gaps import Timeline
from cgtool.analysis.units import count_text, time_text
from cgtool.findings.registry import code
from cgtool.model.capture import Capture, Graph
from cgtool.model.finding import Finding
from cgtool.model.measurements import InputCopy, whole

CAPTURE_TIME_NOT_AMORTISED = code("capture-time-not-amortised")
CONCURRENCY_LOST_OR_FALSE_DEPENDENCY = code("concurrency-lost-or-false-dependency")
FIRST_REPLAY_LATENCY = code("first-replay-latency")
INPUT_COPY_DOMINATES = code("input-copy-dominates")
MEMCPY_MEMSET_NODE_OVERHEAD = code("memcpy-memset-node-overhead")
PADDING_WASTE = code("padding-waste")
PER_STEP_SYNC_AROUND_REPLAY = code("per-step-sync-around-replay")
TOO_MANY_SMALL_GRAPHS = code("too-many-small-graphs")

YES, HARDLY, NO, UNKNOWN = "yes", "hardly", "no", "cannot tell"
_GAIN = 1.1
"""Less is hardly worth a capture."""
_COPIES_COST = 0.97
"""Copies of inputs that leave more of the speed-up than this are not mentioned."""


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

    @property
    def copies_sentence(self) -> str | None:
        """The speed-up with copies of the inputs, where they cost enough to mention."""
        copied, speedup = self.with_copies, self.speedup
        if copied is None or speedup is None or copied >= _COPIES_COST * speedup:
            return None
        return f"With a copy of every input before each replay it is {copied:.1f}x."


def judge(capture: Capture, lines: Sequence[Timeline], paths: Sequence[Path]) -> Gain:
    """``lines`` and ``paths`` hold one for each graph that is replayed by itself."""
    compared = bench.bench_report(capture) if capture.bench else None
    row = _whole(compared)
    copies = copies_ns(capture)
    made = Gain(
        UNKNOWN,
        "Cannot tell whether a CUDA graph helps: this capture was not timed against eager.",
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
    digits = 2 if low < 2 or row.speedup < 2 else 1
    faster, between = (
        f"{row.speedup:.{digits}f}x",
        f"95% CI {low:.{digits}f}x to {high:.{digits}f}x",
    )
    pays = ""
    if row.break_even is not None:
        pays = f" and pays for its capture after {count_text(row.break_even, 'replay')}"
    at_most = row.eager_ns / busy if busy else None
    if low > 1:
        answer = YES if row.speedup >= _GAIN else HARDLY
        only = "" if answer == YES else "only "
        sentence = f"A CUDA graph makes this {only}{faster} faster ({between}){pays}."
    elif high < 1:
        answer = NO
        sentence = f"A CUDA graph makes this slower: {faster} the speed of eager ({between})."
    elif high < _GAIN:
        answer = NO
        sentence = f"A CUDA graph gains nothing here: {faster} the speed of eager ({between})."
    else:
        answer = UNKNOWN
        sentence = (
            f"Cannot tell whether a CUDA graph helps: {faster} the speed of eager ({between})."
        )
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
    host = time_text(row.eager_host_ns)
    if answer in (YES, UNKNOWN):
        if row.eager_host_ns >= busy:
            return f"Eager is launch-bound: the host takes {host} to launch {work} of GPU work."
        return f"Eager takes {eager} for {work} of GPU work, which the host launches in {host}."
    return (
        f"{work} of eager's {eager} is GPU work ({min(1.0, busy / row.eager_ns):.0%}), which a "
        f"graph does not shorten: it can gain at most {max(1.0, at_most):.2f}x."
    )


_MANY_REPLAYS = 10_000
_MANY_GRAPHS = 3
"""A forward, its backward and one more: less is what most workloads have."""
_FIRST_NS = 100e3
_WAIT = 0.25
"""Share of a replay that a wait behind it adds."""
_PADDED = 0.5
_MOVES = 0.4
"""Share of the nodes' time in copies, casts and fills."""
_COULD, _DID = 0.2, 0.25
_MOVING_OPS = frozenset(
    (
        "aten::copy_", "aten::_to_copy", "aten::clone", "aten::fill_", "aten::zero_",
        "aten::zeros", "aten::contiguous", "aten::zeros_like", "aten::_foreach_zero_",
        "aten::_foreach_copy_",
    )
)  # fmt: skip


def findings_of(
    capture: Capture,
    lines: Sequence[Timeline],
    paths: Sequence[Path],
    row: BenchRow | None,
    copies: float,
) -> Iterator[Finding]:
    """``row`` is the whole iteration, ``copies`` the nanoseconds in which its inputs are copied."""
    yield from _copied_inputs(capture, lines, row, copies)
    yield from _padding(capture)
    yield from _small_graphs(capture, lines)
    yield from _moves(capture)
    yield from _lost_concurrency(capture, lines, paths)
    if row is not None and row.break_even is not None and row.break_even > _MANY_REPLAYS:
        yield Finding(
            CAPTURE_TIME_NOT_AMORTISED,
            f"a replay saves {time_text(row.eager_ns - row.replay_ns)}: the capture has paid "
            f"for itself after {row.break_even:,} replays only",
            phase=row.phase,
        )
    yield from _around(capture)


def copies_ns(capture: Capture) -> float:
    """Copying every input from elsewhere on the device, one after the other."""
    inputs = capture.profile.inputs if capture.profile else ()
    return sum(_copy_ns(capture, one) for one in inputs)


def _copy_ns(capture: Capture, one: InputCopy) -> float:
    known = capture.profile.graphs if capture.profile else ()
    empty = next((median(each.empty_ns) for each in known if each.empty_ns), 0.0)
    return max(one.copy_ns - empty, 0.0)


def _copied_inputs(
    capture: Capture, lines: Sequence[Timeline], row: BenchRow | None, copies: float
) -> Iterator[Finding]:
    inputs = capture.profile.inputs if capture.profile else ()
    total = sum(one.replay_ns or 0.0 for one in lines)
    if not copies or not total:
        return
    saved = row.eager_ns - row.replay_ns if row is not None else None
    eaten = saved is not None and 0 < saved <= copies
    if copies < total and not eaten:
        return
    much = f"copying the inputs takes {time_text(copies)} before each replay of {time_text(total)}"
    if eaten and saved is not None:
        much += f", and the replay saves {time_text(saved)}"
    costly = sorted(inputs, key=lambda one: -one.copy_ns)[:3]
    yield Finding(
        INPUT_COPY_DOMINATES,
        much,
        evidence=tuple(
            f"{one.name}: {one.bytes / 2**20:.1f} MiB, {time_text(_copy_ns(capture, one))} from "
            "the device"
            + (f", {time_text(one.host_copy_ns)} from pinned memory" if one.host_copy_ns else "")
            for one in costly
        ),
    )


def _padding(capture: Capture) -> Iterator[Finding]:
    padded = [
        one
        for one in (capture.profile.inputs if capture.profile else ())
        if one.rows and one.padding_rows and one.padding_rows >= _PADDED * one.rows
    ]
    if padded:
        worst = max(padded, key=lambda one: (one.padding_rows or 0) / (one.rows or 1))
        yield Finding(
            PADDING_WASTE,
            f"{worst.padding_rows} of the {worst.rows} rows of {worst.name} hold one and the same "
            "value: if that is padding, each replay computes it",
            evidence=tuple(f"{one.name}: {one.padding_rows} of {one.rows} rows" for one in padded),
        )


def _small_graphs(capture: Capture, lines: Sequence[Timeline]) -> Iterator[Finding]:
    small = [
        (one, median(launches))
        for one in lines
        if one.replay_ns is not None
        and (launches := capture.graphs[one.graph].launch_ns)
        and one.replay_ns < median(launches)
    ]
    if len(small) < _MANY_GRAPHS:
        return
    host, device = sum(launch for _, launch in small), sum(one.replay_ns or 0 for one, _ in small)
    yield Finding(
        TOO_MANY_SMALL_GRAPHS,
        f"{len(small)} graphs are shorter than their launch: the host needs {time_text(host)} to "
        f"launch what the GPU ends in {time_text(device)}",
        evidence=tuple(
            f"{one.name}: {one.nodes} nodes, {time_text(one.replay_ns or 0)}, launched in "
            f"{time_text(launch)}"
            for one, launch in small[:4]
        ),
    )


def _moves(capture: Capture) -> Iterator[Finding]:
    """Copies, casts and fills by their time; by their number they are found by ``check``."""
    origins: Counter[int | None] = Counter()
    total = moving = count = nodes = 0
    for graph in capture.graphs:
        for node in graph.nodes:
            nodes += node.duration_ns is not None
            duration = node.duration_ns or 0
            total += duration
            origin = None if node.origin is None else capture.origins[node.origin]
            op = origin.op.partition(".")[0] if origin is not None and origin.op else None
            if node.type in ("memcpy", "memset") or op in _MOVING_OPS:
                moving += duration
                count += 1
                origins[node.origin] += duration
    if not total or moving < _MOVES * total:
        return
    index = origins.most_common(1)[0][0]
    origin = None if index is None else capture.origins[index]
    frames = origin.frames if origin is not None else ()
    yield Finding(
        MEMCPY_MEMSET_NODE_OVERHEAD,
        f"copies, casts and fills take {time_text(moving)} of the {time_text(total)} in which "
        f"nodes run ({moving / total:.0%}), {count} of {nodes} nodes; most of it comes from here",
        tuple(capture.frames[frame] for frame in frames),
        module=origin.module if origin is not None else None,
    )


def _lost_concurrency(
    capture: Capture, lines: Sequence[Timeline], paths: Sequence[Path]
) -> Iterator[Finding]:
    """Branches that the edges allow to run side by side, and that ran in turn."""
    for line, path in zip(lines, paths, strict=True):
        could, did = line.work_ns - path.length_ns, line.work_ns - line.busy_ns
        if line.span_ns is None or could < _COULD * line.work_ns or did > _DID * could:
            continue
        yield Finding(
            CONCURRENCY_LOST_OR_FALSE_DEPENDENCY,
            f"{line.name}: branches of the graph could run side by side for {time_text(could)}, "
            f"and did for {time_text(did)}: kernels that fill the device leave no room, or the "
            "branches share a hardware queue",
            phase=capture.graphs[line.graph].phase,
            fix="make the kernels of one branch smaller, or leave the second stream out; "
            "CUDA_DEVICE_MAX_CONNECTIONS=32 for many branches",
            evidence=(
                f"sum of its nodes {time_text(line.work_ns)}, critical path "
                f"{time_text(path.length_ns)}, busy {time_text(line.busy_ns)}",
            ),
        )


def _around(capture: Capture) -> Iterator[Finding]:
    known = [
        one
        for one in (capture.profile.graphs if capture.profile else ())
        if one.synced_ns and one.queued_ns
    ]
    if not known:
        return
    synced = sum(median(one.synced_ns) for one in known)
    first = sum(one.first_ns or 0.0 for one in known)
    queued = sum(one.queued_ns or 0.0 for one in known)
    graphs = [capture.graphs[one.graph] for one in known]
    every = "each of its graphs" if len(known) > 1 else "the graph"
    measured = all(one.first_ns is not None for one in known)
    if measured and first - synced >= max(_FIRST_NS, synced):
        instantiate = sum(one.instantiate_ns or 0 for one in graphs)
        yield Finding(
            FIRST_REPLAY_LATENCY,
            f"the first replay of {every} takes {time_text(first)} in all, later ones take "
            f"{time_text(synced)}",
            evidence=(f"instantiating took {time_text(instantiate)} before",),
        )
    if synced - queued >= _WAIT * queued:
        yield Finding(
            PER_STEP_SYNC_AROUND_REPLAY,
            f"a loop that waits for each replay of {every} (.item(), print, synchronize) takes "
            f"{time_text(synced)} an iteration, one that does not {time_text(queued)}: "
            f"{synced / queued - 1:.0%} more",
        )
