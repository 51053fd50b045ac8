"""The first view: the sentences that matter, what was captured where, and the findings; of a
program, its captures and replays in time, by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cgtool.analysis.graph.overlap import CONCURRENCY_LOST_OR_FALSE_DEPENDENCY
from cgtool.analysis.graph.places import file_line
from cgtool.analysis.graph.summary import Summary, graph_findings, summarize
from cgtool.analysis.ledger_findings import by_line
from cgtool.analysis.ledger_report import LedgerReport, ledger_report
from cgtool.analysis.reports import ExplainedFinding, explain_findings, place_of
from cgtool.analysis.timing.bench import bench_report
from cgtool.analysis.timing.gain import Gain, judge
from cgtool.analysis.timing.profile import ProfileReport
from cgtool.analysis.units import (
    bytes_text,
    count_text,
    rate_text,
    share_text,
    total_of,
)
from cgtool.html.screens import page_table, tables
from cgtool.model.capture import Capture, Frame
from cgtool.model.ledger import Ledger, LedgerGraph
from cgtool.model.measurements import whole
from cgtool.render import ledger_table, profile_table, summary_table
from cgtool.render.table import Table

NumberFrame = Callable[[Frame | None], int]
"""The number of a frame in the page."""


def answer(capture: Capture, report: ProfileReport | None, number: NumberFrame) -> dict[str, Any]:
    """``report``: of a capture whose nodes were timed."""
    summary = summarize(capture)
    ledger = ledger_report(capture) if capture.ledger is not None else None
    gain = report.gain if report is not None else None
    if gain is None and capture.bench is not None:
        # Whole iterations were timed, not their nodes.
        gain = judge(capture, (), ())
    findings = explain_findings((*graph_findings(capture), *(gain.findings if gain else ())))
    if ledger is not None:
        findings = (*ledger.findings, *findings)
        sentences = [
            f"{each[:1].upper()}{each[1:]}." for each in (ledger.sentence, ledger.steps) if each
        ]
    elif gain is not None:
        sentences = list(_sentences(gain, report))
    else:
        sentences = [_contents(summary)]
    return {
        "sentences": sentences,
        "compared": _compared(capture),
        "verdict": gain.answer if gain is not None and ledger is None else None,
        "facts": list(_facts(capture, summary)),
        "tables": tables(profile_table.render(report)) if report else [],
        "notes": [
            *(gain.warnings if gain else ()),
            *(_three_times(report) if report else ()),
            *(caveat.text for caveat in capture.caveats),
            *(ledger.lost if ledger else ()),
        ],
        "run": run_tree(capture, capture.ledger, ledger) if capture.ledger and ledger else None,
        "failures": list(ledger.failures) if ledger else [],
        "findings": [_finding(finding, number) for finding in findings],
    }


def _sentences(gain: Gain, report: ProfileReport | None) -> Iterator[str]:
    yield from filter(None, (gain.sentence, gain.why, gain.copies_sentence))
    yield from filter(None, (bound.sentence for bound in report.bounds) if report else ())


def _compared(capture: Capture) -> dict[str, float] | None:
    """The time of a whole iteration in eager and by replay, in nanoseconds; None where they were
    not timed against each other."""
    rows = {row.phase: row for row in bench_report(capture).rows} if capture.bench else {}
    row = rows.get(whole(rows))
    return {"eager": row.eager_ns, "replay": row.replay_ns} if row is not None else None


def _three_times(report: ProfileReport) -> Iterator[str]:
    """Which of the times of a graph is which, where the page shows three."""
    if overhead := report.tracing_overhead[:_NAMED]:
        longer = ", ".join(f"{name} {share:+.1%}" for name, share in overhead)
        yield (
            "Replay times are without the profiler. Nodes were timed under it, and Graph draws "
            f"those replays ({longer}). A critical path is the sum of the times of its nodes, "
            "without idle time."
        )


def _contents(summary: Summary) -> str:
    """``190 nodes: forward 50, backward 140.``"""
    graphs = summary.graphs
    if not graphs:
        return "No graph was captured."
    nodes = count_text(sum(row.nodes for row in graphs), "node")
    if len(graphs) == 1:
        return f"{nodes} in the graph {graphs[0].name}. Nothing was timed."
    each = ", ".join(f"{row.name} {row.nodes:,}" for row in graphs[:_NAMED])
    more = f", and {count_text(len(graphs) - _NAMED, 'more graph')}" if len(graphs) > _NAMED else ""
    return f"{nodes} in {count_text(len(graphs), 'graph')}: {each}{more}. Nothing was timed."


_NAMED = 6


def _facts(capture: Capture, summary: Summary) -> Iterator[tuple[str, str]]:
    """Labels and texts: the capture, its machine, and for how many nodes the code is known."""
    environment, entry = capture.environment, capture.entry
    yield "entry", f"{entry.spec} ({entry.kind})"
    device = environment.device or "no device: nothing was recorded"
    yield "device", "the simulated device" if environment.simulated else device
    versions = [
        ("torch", environment.torch),
        ("Python", environment.python),
        ("CUDA", environment.cuda_runtime),
        ("driver", environment.driver),
    ]
    if software := [f"{name} {version}" for name, version in versions if version]:
        yield "software", ", ".join(software)
    if environment.cpu:
        yield "CPU", environment.cpu
    when = capture.created.replace("T", " ").replace("+00:00", " UTC")
    yield "captured", f"{when}, by cgtool {capture.cgtool}"
    if capture.ledger is not None:
        if reserved := total_of(each.reserved_bytes for each in capture.ledger.graphs):
            yield "memory", f"{bytes_text(reserved)} reserved by the captures"
    elif summary.pools:
        yield "memory", summary_table.memory_text(summary)
    profile = capture.profile
    if profile is not None and profile.memory_bytes_per_s is not None:
        peaks = [f"{peak.dtype} {rate_text(peak.flops_per_s, 'FLOP/s')}" for peak in profile.peaks]
        memory = f"memory {rate_text(profile.memory_bytes_per_s, 'B/s')}"
        yield "measured peaks", ", ".join([memory, *peaks])
    coverage = summary.coverage
    known = [
        ("op", coverage.op, coverage.nodes),
        ("line", coverage.line, coverage.nodes),
        ("module", coverage.module, coverage.nodes),
        ("forward line", coverage.forward_line, coverage.backward),
    ]
    texts = (f"{name} {share_text(part, whole)}" for name, part, whole in known if whole)
    if coverage.nodes:
        yield "attribution", ", ".join(texts)


def _finding(finding: ExplainedFinding, number: NumberFrame) -> dict[str, Any]:
    def frames(chosen: Iterable[Frame]) -> list[int]:
        return [number(frame) for frame in chosen]

    place = finding.place
    return {
        "severity": finding.severity,
        "code": finding.code,
        "title": finding.title,
        "reason": finding.reason,
        "fix": finding.fix,
        "phase": finding.phase,
        "module": finding.module,
        "times": finding.times,
        "place": number(place),
        "chain": frames(finding.chain),
        "forward": number(place_of(finding.forward)),
        "evidence": list(finding.evidence),
        "graphs": list(finding.graphs),
        "unneeded": finding.code == CONCURRENCY_LOST_OR_FALSE_DEPENDENCY,
    }


def run_tree(capture: Capture, ledger: Ledger, report: LedgerReport) -> dict[str, Any]:
    """The processes, a lane for each line of each process that captures, and the tables of
    ``cgtool run``."""
    lanes: dict[tuple[str, int], int] = {}
    entries = []
    for group in by_line(capture, ledger):
        for line, graphs in group.by_caller():
            name = f"{group.owner} {file_line(line)}".strip()
            for each in graphs:
                lane = lanes.setdefault((name, each.process), len(lanes))
                entries.append({"lane": lane, **_entry(each)})
    return {
        "wall": ledger.wall_ns,
        "processes": [
            {
                "pid": process.pid,
                "command": " ".join(process.command),
                "from": process.began_ns,
                "to": process.ended_ns,
            }
            for process in ledger.processes
        ],
        "lanes": list(lanes),
        "entries": entries,
        "events": [[each.time_ns, each.name] for each in ledger.events],
        "tables": _tables(report),
        "memory": [
            [-1 if row.number is None else row.number, row.key, row.line, row.pool,
             row.grown_bytes, row.kept_bytes, row.exec_bytes]
            for row in report.graph_memory
        ],
        "estimates": report.size_estimates,
    }  # fmt: skip


def _tables(report: LedgerReport) -> list[dict[str, Any]]:
    """By line, by graph, and whatever else the screens have."""
    shown = tables(ledger_table.render(report))
    if not report.graphs:
        return shown
    by_line_, *notes = shown
    graphs = ledger_table.render(report, graphs=True)
    by_graph = tables(graphs)
    where = [part for part in graphs.parts if type(part) is Table and part.name == "where"]
    # The memory that was given back is part of the table of all.
    others = {each["title"]: each for each in (*notes, *tables(ledger_table.render_pools(report)))}
    numbers = [-1 if row.number is None else row.number for row in report.graphs]
    return [
        {**by_line_, "title": "By line"},
        {**by_graph[0], "title": "By graph", "graphs": numbers},
        *({**page_table(table), "title": "Where", "graphs": numbers} for table in where),
        *tables(ledger_table.render_times(report)),
        *others.values(),
    ]


def _entry(each: LedgerGraph) -> dict[str, Any]:
    """Times are nanoseconds from the start of the command."""
    return {
        "graph": -1 if each.graph is None else each.graph,
        "key": each.key,
        "began": each.began_ns,
        "capture": each.capture_ns,
        "first": each.first_replay_ns,
        "last": each.last_replay_ns,
        "replays": each.counted,
        "moments": [[moment.time_ns, moment.replays] for moment in each.moments],
        "ended": each.ended_ns,
        "end": each.end,
        "because": each.because,
        "failure": each.failure,
        "unused": each.is_unused,
        "reserved": each.reserved_bytes,
    }
