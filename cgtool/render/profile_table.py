"""The screen of ``cgtool profile``."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from cgtool.analysis.timing import gain
from cgtool.analysis.timing.gaps import Timeline
from cgtool.analysis.timing.profile import PathRow, ProfileReport
from cgtool.analysis.timing.roofline import MEANS
from cgtool.analysis.timing.time_tables import KERNEL, MIXED, NODE, OP
from cgtool.analysis.units import count_text, rate_text, time_text
from cgtool.render import time_table
from cgtool.render.findings import render as render_findings
from cgtool.render.table import BAD, GOOD, WARNING, Words, add, explained, plain, table

_ANSWERS = {gain.YES: GOOD, gain.HARDLY: WARNING, gain.NO: BAD, gain.UNKNOWN: WARNING}
_FEELS = 0.97
"""Copies of inputs that leave more of the speed-up than this are not worth a line."""
_ALL = 1.005
"""A larger sum of shares shows as more than 100 %."""


def render(report: ProfileReport, *, overview: bool = True) -> RenderableType:
    """Verdict, replays, tables, gaps, critical paths, findings; without ``overview`` the tables
    alone, under the verdict."""
    parts: list[RenderableType] = [*_head(report, overview=overview)]
    if overview:
        parts += ["", _replays(report)]
    for one in report.tables:
        parts += ["", time_table.render(one, report.total_ns, report.idle_ns)]
    if overview:
        for part in (_gaps(report), _order(report)):
            if part is not None:
                parts += ["", part]
    words = (explained(_words(report, overview=overview, wide=wide)) for wide in (True, False))
    parts += ["", time_table.ByWidth(*words)]
    doubts = [("doubt", one) for one in report.gain.doubts] if overview else []
    doubts += [("note", one.text) for one in report.caveats]
    if report.untimed:
        doubts.append(("note", f"{count_text(report.untimed, 'node')} could not be timed"))
    if doubts:
        parts.append(explained(doubts, WARNING))
    if overview and report.gain.findings:
        parts += ["", render_findings(report.gain.findings)]
    return Group(*parts)


def _head(report: ProfileReport, *, overview: bool) -> Iterable[Text]:
    head = plain(report.spec, "bold")
    head.append_text(plain(f" on {report.device}"))
    yield head
    yield plain(report.gain.sentence, f"bold {_ANSWERS[report.gain.answer]}")
    if not overview:
        each = "a replay" if len(report.replays) == 1 else "a replay of each graph"
        yield plain(f"{each} takes {time_text(report.total_ns)}")
        return
    if report.gain.why:
        yield plain(report.gain.why)
    copied, whole = report.gain.with_copies, report.gain.speedup
    if copied is not None and whole is not None and copied < _FEELS * whole:
        yield plain(f"with a copy of every input before each replay: {copied:.1f} times")


def _replays(report: ProfileReport) -> RenderableType:
    measured = any(one.replay_ns is not None for one in report.replays)
    around = any(one.queued_ns is not None for one in report.costs)
    made = table(
        "Replays",
        "graph",
        ("nodes", "right"),
        ("replay" if measured else "traced", "right"),
        ("busy", "right"),
        ("gaps", "right"),
        ("launch", "right"),
        *([("in a row", "right"), ("waited for", "right"), ("first", "right")] if around else []),
    )
    for line, cost in zip(report.replays, report.costs, strict=True):
        add(
            made,
            line.name,
            f"{line.nodes:,}",
            time_text(line.total_ns),
            f"{min(1.0, line.busy_ns / (line.total_ns or 1)):.0%}",
            f"{line.idle_ns / (line.total_ns or 1):.0%}",
            time_text(cost.launch_ns),
            *(time_text(one) for one in (cost.queued_ns, cost.synced_ns, cost.first_ns) if around),
        )
    if len(report.replays) > 1:
        busy = sum(one.busy_ns for one in report.replays) / (report.total_ns or 1)
        launches = [one.launch_ns for one in report.costs if one.launch_ns is not None]
        add(
            made,
            Words("together", "dim"),
            f"{sum(one.nodes for one in report.replays):,}",
            time_text(report.total_ns),
            f"{min(1.0, busy):.0%}",
            f"{report.idle_ns / (report.total_ns or 1):.0%}",
            time_text(sum(launches) if len(launches) == len(report.costs) else None),
            *([""] * (len(made.columns) - 6)),
        )
    if all(one.at_roofs_ns is None and one.kind is None for one in report.bounds):
        unknown = "no op's bytes and operations are known: nothing is held against the roofs"
        return Group(made, plain(unknown, "dim"))
    return Group(made, *(plain(f"{one.sentence}.") for one in report.bounds))


def _gaps(report: ProfileReport) -> RenderableType | None:
    lines = [one for one in report.replays if one.gap_count]
    if not lines:
        return None
    parts: list[RenderableType] = [plain("What the stream waited for", "bold")]
    parts += [plain(_gap_sentence(one)) for one in lines]
    if report.gaps:
        several = len(report.replays) > 1
        made = table(
            "Gaps that stand out",
            *([("graph", "left")] if several else []),
            "after",
            "before",
            ("gap", "right"),
            ("traced", "right"),
            "waits for",
        )
        for row in report.gaps:
            waits = f"{row.over} node" if row.over else count_text(row.waits_for, "node")
            add(
                made,
                *([row.graph] if several else []),
                row.after,
                row.before,
                time_text(row.gap.ns),
                time_text(row.gap.traced_ns),
                waits,
            )
        parts.append(made)
    return Group(*parts)


def _gap_sentence(line: Timeline) -> str:
    count = count_text(line.gap_count, "gap")
    if line.replay_ns is not None and line.gaps_ns < 1:
        return f"{line.name}: nothing; {count} under the profiler, none without it"
    text = f"{line.name}: {count} of {time_text(line.gaps_ns)} in all"
    if line.gap_count > 1:
        text += f", {time_text(line.gap_median_ns)} the median"
    if line.replay_ns is None:
        return f"{text}, under the profiler"
    if line.around_ns >= 1:
        text += f"; {time_text(line.around_ns)} before the first node and after the last"
    return text


def _order(report: ProfileReport) -> RenderableType | None:
    """Critical path, what ran side by side, and what could."""
    rows = [one for one in report.paths if one.path.timed]
    if not rows:
        return None
    made = table(
        "Critical path and overlap",
        "graph",
        ("critical path", "right"),
        ("of work", "right"),
        ("at once", "right"),
        ("overlapped", "right"),
        ("could gain", "right"),
    )
    lines = {one.graph: one for one in report.replays}
    for row in rows:
        line = lines[row.path.graph]
        add(
            made,
            line.name,
            time_text(row.path.length_ns),
            f"{row.path.length_ns / (line.work_ns or 1):.0%}",
            f"{line.at_once}",
            time_text(line.work_ns - line.busy_ns) if line.work_ns > line.busy_ns else "—",
            _could(row),
        )
    below = [
        plain(
            f"on the critical path of {lines[row.path.graph].name}: "
            + ", ".join(f"{name} {time_text(time)}" for name, time in row.on_path)
        )
        for row in rows
        if row.path.length_ns < 0.95 * row.path.busy_ns
    ]
    return Group(made, *below)


def _could(row: PathRow) -> str:
    gain_ns = row.overlap.gain_ns
    return f"{time_text(gain_ns)} ({row.overlap.gain:.0%})" if gain_ns else "—"


def _words(report: ProfileReport, *, overview: bool, wide: bool) -> list[tuple[str, str]]:
    """What the words above mean, as far as they were used."""
    measured = [one for one in report.replays if one.replay_ns is not None]
    found = []
    if measured and overview:
        found.append(("replay", "GPU time of one, launched on a busy device, without a profiler"))
    if overview:
        found.append(("busy, gaps", "the share in which some node runs, and in which none does"))
    found += _tracing(report, overview=overview)
    if any(sum(row.share for row in one.rows) > _ALL for one in report.tables):
        found.append(
            ("share", "of the replays; nodes side by side count each, which makes more than 100%")
        )
    if overview and any(one.queued_ns is not None for one in report.costs):
        found += [
            ("launch", "time of one replay() on the host, on an idle stream"),
            ("in a row", "wall time of one of many replays that nobody waits for"),
            ("waited for", "wall time of one replay with a synchronize behind it"),
            ("first", "the same of the first one, which uploads the graph"),
        ]
    if overview and any(one.path.timed for one in report.paths):
        found += [
            ("critical path", "the longest chain of nodes that wait for one another"),
            ("of work", "the same as a share of the time of all nodes"),
            ("at once", "most nodes that ran at the same time"),
            ("overlapped", "time in which two nodes ran, or more"),
            ("could gain", "at most, if all that needs nothing of each other ran side by side"),
        ]
    rated = [one for one in report.tables if one.by in (OP, KERNEL, NODE)]
    if wide and any(row.filled is not None for one in rated for row in one.rows):
        found.append(("fills", "its blocks, as a share of those that the device holds at once"))
    shown = {row.bound for one in report.tables for row in one.rows}
    found += [(name, text) for name, text in MEANS.items() if name in shown]
    if MIXED in shown:
        found.append((MIXED, "none of these holds back half of that time"))
    if shown & set(MEANS) and report.memory_bytes_per_s is not None:
        peaks = [f"{one.dtype} {rate_text(one.flops_per_s, 'FLOP/s')}" for one in report.peaks]
        roofs = [f"memory {rate_text(report.memory_bytes_per_s, 'B/s')}", *peaks]
        found.append(("roofs", f"measured on this device: {', '.join(roofs)}"))
    return found


def _tracing(report: ProfileReport, *, overview: bool) -> list[tuple[str, str]]:
    """How nodes were timed, and how much longer that made the replays."""
    route = {
        "cupti": "CUPTI's records, which name the node",
        "profiler": "PyTorch's profiler, nodes told by their order",
    }.get(report.route or "", "PyTorch's profiler")
    spans = [
        (one.name, one.span_ns / one.replay_ns - 1, one.scale)
        for one in report.replays
        if one.replay_ns and one.span_ns
    ]
    if not spans:
        return [("times", f"of nodes: {route}; gaps are as long as under it, which is too long")]
    over = ", ".join(f"{name} {longer:+.1%}" for name, longer, _ in spans)
    found = [("times", f"of nodes: {route}; tracing made the replays longer: {over}")]
    scales = ", ".join(
        f"{scale:.2f}" + f" ({name})" * (len(spans) > 1) for name, _, scale in spans if scale
    )
    if overview and scales:
        text = f"as traced, times {scales}: nodes, gaps and both ends then make up the replay"
        found.append(("gap", text))
    return found
