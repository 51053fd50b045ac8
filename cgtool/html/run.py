"""The ledger of a program as the page draws it: captures and replays in time, by line."""

from __future__ import annotations

from typing import Any

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.ledger_findings import by_line
from cgtool.analysis.ledger_report import LedgerReport
from cgtool.html.screens import tables
from cgtool.model.capture import Capture
from cgtool.model.ledger import Ledger, LedgerGraph
from cgtool.render import ledger_table


def run_tree(capture: Capture, ledger: Ledger, report: LedgerReport) -> dict[str, Any]:
    """The processes, a lane for each line of each process that captures, and the tables of
    ``cgtool run``."""
    lanes: dict[tuple[str, int], int] = {}
    entries = []
    for group in by_line(capture, ledger):
        name = f"{group.owner} {file_line(group.place)}".strip()
        for each in group.entries:
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
        "tables": _tables(report),
    }


def _tables(report: LedgerReport) -> list[dict[str, Any]]:
    """By line, by graph, and whatever else the screens have."""
    by_line_, *notes = tables(ledger_table.render(report)) or [{}]
    by_graph = tables(ledger_table.render(report, graphs=True))[:1]
    if not by_graph:
        return []
    numbers = [-1 if row.number is None else row.number for row in report.graphs]
    return [
        {**by_line_, "title": "By line"},
        {**by_graph[0], "title": "By graph", "graphs": numbers},
        *tables(ledger_table.render_times(report)),
        *notes,
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
        "replays": each.replays,
        "ended": each.ended_ns,
        "end": each.end,
        "because": each.because,
        "failure": each.failure,
        "unused": each.is_unused,
        "reserved": each.reserved_bytes,
    }
