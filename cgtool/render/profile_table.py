"""The screen of ``cgtool profile``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cgtool.analysis.timing import gain
from cgtool.analysis.timing.gaps import Timeline
from cgtool.analysis.timing.profile import GapRow, OrderRow, ProfileReport, ReplayRow
from cgtool.analysis.timing.roofline import COMPUTE, LATENCY, MEANS, MEMORY
from cgtool.analysis.timing.time_tables import (
    KERNEL,
    LINE,
    MIXED,
    MODULE,
    NODE,
    OP,
    TimeRow,
    TimeTable,
)
from cgtool.analysis.units import count_text, percent_text, rate_text, time_text
from cgtool.render.report_table import Findings
from cgtool.render.table import BAD, GOOD, WARNING, Column, Screen, plain

_ANSWERS = {gain.YES: GOOD, gain.HARDLY: WARNING, gain.NO: BAD, gain.UNKNOWN: WARNING}
_BOUNDS = {MEMORY: GOOD, COMPUTE: GOOD, LATENCY: WARNING}


def render(report: ProfileReport, *, overview: bool = True, explain: bool = False) -> Screen:
    """Verdict, replays, times, gaps, critical paths, findings; without ``overview`` the times
    alone, under the verdict; with ``explain`` also what the headings mean."""
    screen, verdict = Screen(explain=explain), report.gain
    screen.parts.append(plain(report.spec, "bold").append_text(plain(f" on {report.device}")))
    screen.line(verdict.sentence, f"bold {_ANSWERS[verdict.answer]}")
    if overview:
        for sentence in filter(None, (verdict.why, verdict.copies_sentence)):
            screen.line(sentence)
        screen.table("Replays", _replay_columns(report), report.replay_rows)
        for bound in report.bounds:
            if bound.sentence:
                screen.line(bound.sentence)
    else:
        graphs = "" if len(report.replays) == 1 else " of each graph"
        screen.line(f"One replay{graphs} takes {time_text(report.total_ns)}.")
    for table in report.tables:
        depth = "" if table.depth is None else f", to depth {table.depth}"
        rest = [
            {table.by: name, "time": time_ns, "share": share}
            for name, time_ns, share in table.remainder(report.total_ns, report.idle_ns)
        ]
        title, name = f"Time by {table.by}{depth}", f"by-{table.by}"
        screen.table(title, _time_columns(table), table.rows, rest, name=name)
        if table.overlapping:
            screen.line("nodes that run at the same time each count in full", "dim")
    if overview:
        gaps = [line for line in report.replays if line.gap_count]
        screen.table("Gaps between nodes", GAPS, gaps, name="gaps")
        if gaps:
            screen.table("Longest gaps", _gap_columns(report), report.gaps, name="longest-gaps")
        screen.table("Critical path and overlap", ORDER, report.order_rows, name="critical-path")
        for row in report.order_rows:
            if row.on_path:
                steps = ", ".join(f"{name} {time_text(time)}" for name, time in row.on_path)
                screen.line(f"Critical path of {row.name}: {steps}")
    if notes := list(_notes(report, overview=overview)):
        screen.parts.append("")
        screen.labeled(notes, WARNING)
    screen.legend(_legend(report))
    if overview:
        screen.add(Findings(verdict.findings))
    return screen


def _notes(report: ProfileReport, *, overview: bool) -> Iterator[tuple[str, str]]:
    yield from (("warning", text) for text in report.gain.warnings if overview)
    yield from (("note", caveat.text) for caveat in report.caveats)
    if report.untimed:
        yield "note", f"{count_text(report.untimed, 'node')} could not be timed"
    if not report.tracing_overhead:
        yield "note", "gaps were measured under the profiler, which makes them longer"


def _replay_columns(report: ProfileReport) -> Sequence[Column[ReplayRow]]:
    measured = any(line.replay_ns is not None for line in report.replays)
    return [
        Column("graph", "name"),
        Column("nodes"),
        Column(
            "replay" if measured else "traced",
            "total_ns",
            explanation="GPU time of one replay in a loop, or of a single one if the loop waits "
            "for the host" + ("" if measured else ", under the profiler"),
        ),
        Column(
            "busy", "busy", percent_text, explanation="share of the replay in which a node runs"
        ),
        Column("idle", format=percent_text),
        Column(
            "launch", "costs.launch_ns", explanation="host time of one replay() on an idle stream"
        ),
        Column(
            "back to back",
            "costs.queued_ns",
            optional=True,
            priority=1,
            explanation="wall time of one of many replays without a synchronize in between",
        ),
        Column(
            "+ synchronize",
            "costs.synced_ns",
            name="replay and synchronize",
            optional=True,
            priority=1,
            explanation="wall time of one replay and a synchronize",
        ),
        Column(
            "first",
            "costs.first_ns",
            optional=True,
            priority=2,
            explanation="wall time of the first replay, which uploads the graph, and a synchronize",
        ),
    ]


def _time_columns(table: TimeTable) -> Sequence[Column[TimeRow]]:
    by = table.by
    known = any(row.bound is not None for row in table.rows)
    rated = by in (OP, KERNEL, NODE)
    quotes = by == LINE and any(row.source for row in table.rows)
    return [
        Column(by, "name", wrap="cut" if by == KERNEL else "words", narrowest=16),
        Column("time", "total_ns"),
        Column(
            "share",
            "share",
            lambda share: f"{share:.1%}",
            explanation="of the replays, idle time included",
        ),
        Column("nodes", shown=by != NODE),
        Column(
            "backward",
            "backward",
            percent_text,
            shown=table.has_backward and not rated,
            priority=2,
            explanation="share of its time that is spent in backward",
        ),
        Column(
            "bound",
            wrap="never",
            shown=known,
            style=lambda row: _BOUNDS.get(row.bound or "", "dim"),
            explanation="what limits most of its time",
        ),
        Column(
            "of peak",
            "of_roof",
            lambda share: ">100%" if (share or 0) > 1.005 else percent_text(share),
            shown=rated and known,
            explanation="of the measured peak bandwidth or FLOP/s, whichever is nearer",
        ),
        Column(
            "FLOP/s",
            lambda row: row.flops_per_s if row.nearer == COMPUTE else None,
            lambda rate: rate_text(rate, "FLOP/s"),
            shown=rated and known,
            optional=True,
            priority=4,
        ),
        Column(
            "bandwidth",
            lambda row: row.bytes_per_s if row.nearer != COMPUTE else None,
            lambda rate: rate_text(rate, "B/s"),
            unit="bytes/s",
            shown=rated and known,
            optional=True,
            priority=4,
        ),
        Column(
            "GPU filled",
            "filled",
            percent_text,
            shown=rated,
            optional=True,
            priority=5,
            explanation="its blocks, as a share of those that the GPU holds at once",
        ),
        Column(
            "source",
            lambda row: row.source or f"in {row.function}",
            wrap="cut",
            shown=quotes,
            priority=1,
        ),
        Column("type", "module", wrap="cut", shown=by == MODULE, priority=2),
        Column(
            "op",
            wrap="cut",
            shown=by in (KERNEL, NODE) or (by == LINE and not quotes),
            priority=1,
        ),
        Column(
            "top line",
            "line",
            shown=by in (OP, KERNEL),
            priority=2,
            explanation="the line with most of its time",
        ),
        Column("line", shown=by == NODE, priority=2),
        Column("kernel", wrap="cut", shown=by == NODE, priority=3),
    ]


GAPS: Sequence[Column[Timeline]] = (
    Column("graph", "name"),
    Column(
        "gaps", "gap_count", explanation="times at which no node ran, counted under the profiler"
    ),
    Column("total", "gaps_ns"),
    Column("median", "gap_median_ns"),
    Column(
        "before and after",
        "around_ns",
        zero=False,
        optional=True,
        explanation="before the first node and after the last",
    ),
)


def _gap_columns(report: ProfileReport) -> Sequence[Column[GapRow]]:
    return [
        Column("graph", wrap="never", shown=len(report.replays) > 1),
        Column("gap", "gap.ns"),
        Column("after"),
        Column("before"),
        Column(
            "waits for",
            lambda row: row.over or row.waits_for,
            lambda waits: count_text(waits, "node") if isinstance(waits, int) else f"{waits} node",
            priority=1,
            explanation="nodes that the one after the gap depends on",
        ),
        Column(
            "traced",
            "gap.traced_ns",
            priority=2,
            explanation="the gap as it was under the profiler",
        ),
    ]


ORDER: Sequence[Column[OrderRow]] = (
    Column("graph", "name"),
    Column(
        "critical path",
        "length_ns",
        explanation="the longest chain of nodes that wait for each other: the sum of their times, "
        "without idle time",
    ),
    Column("of work", "share", explanation="of the time of all nodes"),
    Column("concurrent", "at_once", explanation="most nodes that ran at once"),
    Column(
        "overlap",
        "overlapped_ns",
        zero=False,
        optional=True,
        explanation="time saved because nodes ran at the same time",
    ),
    Column(
        "possible gain",
        "gain_ns",
        zero=False,
        optional=True,
        explanation="at most, if all independent nodes ran at the same time",
    ),
    Column("of path", "gain", percent_text, zero=False, optional=True, priority=1),
)


def _legend(report: ProfileReport) -> Iterator[tuple[str, str]]:
    """Headings that are shown, with their explanations."""
    route = {
        "cupti": "CUPTI's records, which name the node",
        "profiler": "PyTorch's profiler, whose kernels are matched to nodes by their order",
    }.get(report.route or "", "PyTorch's profiler")
    text = f"GPU time of the nodes in one replay of each graph, from {route}"
    if report.tracing_overhead:
        longer = ", ".join(f"{name} {share:+.1%}" for name, share in report.tracing_overhead)
        text += f"; tracing made the replays longer: {longer}"
    yield "time", text
    scales = [(line.name, line.scale) for line in report.replays if line.replay_ns and line.span_ns]
    if scales:
        factors = ", ".join(f"{scale:.2f} ({name})" for name, scale in scales)
        yield "gaps", f"as traced, times {factors}, to fit a replay without a profiler"
    shown = {row.bound for table in report.tables for row in table.rows}
    for name, meaning in MEANS.items():
        if name in shown:
            yield name, meaning
    if MIXED in shown:
        yield MIXED, "no single limit explains half of its time"
    if shown & set(MEANS) and report.memory_bytes_per_s is not None:
        peaks = [f"{peak.dtype} {rate_text(peak.flops_per_s, 'FLOP/s')}" for peak in report.peaks]
        memory = f"memory {rate_text(report.memory_bytes_per_s, 'B/s')}"
        yield "peak", f"measured on this device: {', '.join([memory, *peaks])}"
