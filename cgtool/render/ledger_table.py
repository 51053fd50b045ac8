"""The screen of ``cgtool run``."""

from __future__ import annotations

from collections.abc import Sequence

from cgtool.analysis.ledger import LedgerReport, LedgerRow
from cgtool.analysis.units import bytes_text, count_text, time_text
from cgtool.render.table import WARNING, Column, Screen, plain

LEDGER: Sequence[Column[LedgerRow]] = (
    Column("made by", lambda row: row.owner, explanation="what captures the graphs"),
    Column("line", lambda row: row.line),
    Column("function", lambda row: ", ".join(row.keys), optional=True, priority=2),
    Column("graphs", lambda row: row.graphs),
    Column(
        "nodes",
        lambda row: row.nodes or None,
        lambda nodes: "—" if nodes is None else " to ".join(f"{count:,}" for count in nodes),
        numeric=True,
        explanation="the fewest and the most of one graph",
    ),
    Column("replays", lambda row: row.replays),
    Column(
        "unused",
        lambda row: row.unused or None,
        optional=True,
        style=WARNING,
        explanation="graphs that were captured and never replayed",
    ),
    Column("failed", lambda row: row.failed or None, optional=True, style=WARNING),
    Column(
        "interval",
        lambda row: row.mean_interval_ns,
        time_text,
        optional=True,
        priority=1,
        explanation="mean time from one replay of a graph to its next",
    ),
    Column(
        "capture",
        lambda row: row.capture_ns,
        time_text,
        explanation="host time of all their captures, instantiation included",
    ),
    Column(
        "reserved",
        lambda row: row.reserved_bytes,
        bytes_text,
        optional=True,
        priority=2,
        explanation="memory that PyTorch's allocator reserved during the captures",
    ),
    Column(
        "replayed at",
        lambda row: row.replayed_at,
        priority=3,
        wrap="cut",
        optional=True,
    ),
)


def render(report: LedgerReport, *, explain: bool = False) -> Screen:
    """The sentence, the ledger, and what torch.compile skipped."""
    screen = Screen(simulated=report.simulated, explain=explain)
    head = plain(report.command, "bold")
    where = "the simulated device" if report.simulated else report.device
    processes = (
        "" if report.processes == 1 else f", {count_text(report.processes, 'process', 'processes')}"
    )
    head.append(f"\n{time_text(report.wall_ns)} on {where}{processes}")
    if report.exit_status:
        head.append(f", exit status {report.exit_status}")
    screen.parts += [head, "", plain(report.sentence)]
    if report.rows:
        screen.table("Graphs", LEDGER, report.rows)
    screen.labelled(
        (("torch.compile", f"{skip.reason} ({count_text(skip.times, 'time')})"))
        for skip in report.skips
    )
    screen.labelled((("not recorded", reason) for reason in report.lost), WARNING)
    screen.labelled((("note", caveat.text) for caveat in report.caveats), WARNING)
    screen.legend()
    return screen
