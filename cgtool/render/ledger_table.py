"""The screen of ``cgtool run``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cgtool.analysis.ledger_report import LedgerReport, LedgerRow
from cgtool.analysis.units import bytes_text, count_text, time_text
from cgtool.render.report_table import render_findings
from cgtool.render.table import BAD, WARNING, Column, Screen


def _count(
    heading: str, cell: Callable[[LedgerRow], int], style: str = "", explanation: str = ""
) -> Column[LedgerRow]:
    """A count that most programs do not have."""
    return Column(
        heading, lambda row: cell(row) or None, optional=True, style=style, explanation=explanation
    )


_OWNER: Column[LedgerRow] = Column(
    "made by", lambda row: row.owner, explanation="what captures the graphs"
)
_LINE: Column[LedgerRow] = Column("line", lambda row: row.line)
_NODES: Column[LedgerRow] = Column(
    "nodes",
    lambda row: row.nodes or None,
    lambda nodes: "—" if nodes is None else " to ".join(f"{count:,}" for count in nodes),
    priority=1,
    numeric=True,
    explanation="of one graph: the fewest and the most",
)
_TIMES: Sequence[Column[LedgerRow]] = (
    Column(
        "capture",
        lambda row: row.capture_ns,
        time_text,
        explanation="host time of the captures, instantiation included",
    ),
    Column(
        "interval",
        lambda row: row.mean_interval_ns,
        time_text,
        optional=True,
        priority=2,
        explanation="mean time from one replay of a graph to its next",
    ),
    Column(
        "reserved",
        lambda row: row.reserved_bytes or None,
        bytes_text,
        optional=True,
        priority=1,
        explanation="memory that PyTorch's allocator reserved during the captures",
    ),
)
_REPLAYED_AT: Column[LedgerRow] = Column(
    "replayed at", lambda row: row.replayed_at or "", wrap="cut", optional=True, priority=3
)
LINES: Sequence[Column[LedgerRow]] = (
    _OWNER,
    _LINE,
    Column("graphs", lambda row: row.graphs),
    _count(
        "again",
        lambda row: row.rerecords,
        WARNING,
        "graphs that torch.compile recorded because one that there was did not fit",
    ),
    _count("unused", lambda row: row.unused, WARNING, "graphs that were never replayed"),
    _count("failed", lambda row: row.failed, BAD, "captures that ended with an error"),
    _NODES,
    Column("replays", lambda row: row.replays),
    *_TIMES,
    _REPLAYED_AT,
    Column("function", lambda row: ", ".join(row.keys), wrap="cut", optional=True, priority=4),
)
GRAPHS: Sequence[Column[LedgerRow]] = (
    Column("graph", lambda row: row.number, explanation="its number for `cgtool dump --graph`"),
    _OWNER,
    _LINE,
    Column("function", lambda row: ", ".join(row.keys), wrap="cut", optional=True, priority=1),
    _NODES,
    Column("replays", lambda row: row.replays),
    *_TIMES,
    _REPLAYED_AT,
    Column("end", lambda row: row.end or "", wrap="cut", optional=True, priority=2),
)


def render(
    report: LedgerReport, *, graphs: bool = False, rows: int = 0, explain: bool = False
) -> Screen:
    """The sentence, the ledger, and the findings. ``graphs``: a row for each graph; ``rows``: at
    most so many rows and findings, 0 for all."""
    screen = Screen(simulated=report.simulated, explain=explain)
    screen.line(f"{report.sentence}", "bold")
    screen.line(_run(report), "dim")
    columns, lines = (GRAPHS, report.graphs) if graphs else (LINES, report.lines)
    shown = lines[: rows or None]
    screen.table("Graphs", columns, shown, _rest(lines[len(shown) :], "graph" if graphs else ""))
    findings = report.findings[: rows or None]
    if findings:
        screen.parts += ["", render_findings(findings)]
    if more := len(report.findings) - len(findings):
        screen.line(f"{count_text(more, 'more finding')}: --rows 0 shows all", "dim")
    if report.lost or report.caveats:
        screen.parts.append("")
    screen.labelled((("not recorded", reason) for reason in report.lost), WARNING)
    screen.labelled((("note", caveat.text) for caveat in report.caveats), WARNING)
    screen.legend()
    return screen


def _run(report: LedgerReport) -> str:
    where = "the simulated device" if report.simulated else report.device
    facts = [f"{report.command}: {time_text(report.wall_ns)}"]
    if where:  # nothing was captured, and so no device was asked
        facts[0] += f" on {where}"
    if report.processes > 1:
        facts.append(count_text(report.processes, "process", "processes"))
    if report.exit_status:
        facts.append(f"exit status {report.exit_status}")
    return ", ".join(facts)


def _rest(rows: Sequence[LedgerRow], noun: str) -> list[dict[str, Any]]:
    """The rows that are not shown, as one."""
    if not rows:
        return []
    return [
        {
            "made by": f"{count_text(len(rows), noun or 'line')} more",
            **({} if noun else {"graphs": sum(row.graphs for row in rows)}),
            "replays": sum(row.replays for row in rows),
            "capture": sum(row.capture_ns for row in rows),
        }
    ]
