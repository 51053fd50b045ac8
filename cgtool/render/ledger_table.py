"""The screen of ``cgtool run``."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from typing import Any

from cgtool.analysis.eager_steps import EagerRow
from cgtool.analysis.graph_memory import GraphMemoryRow
from cgtool.analysis.ledger_events import EventRow
from cgtool.analysis.ledger_memory import MemoryRow
from cgtool.analysis.ledger_notes import Note
from cgtool.analysis.ledger_report import LedgerReport, LedgerRow
from cgtool.analysis.pools import ProgramPoolRow
from cgtool.analysis.units import (
    bytes_text,
    count_text,
    number_text,
    percent_text,
    time_text,
    total_of,
)
from cgtool.render.report_table import Findings
from cgtool.render.table import BAD, WARNING, Column, Screen

_OWNER: Column[LedgerRow] = Column("made by", "owner", explanation="what captures the graphs")
_LINE: Column[LedgerRow] = Column(
    "line",
    explanation="the line that captures; if several lines call its function, the calling line",
)
_NUMBER: Column[LedgerRow] = Column(
    "graph", "number", explanation="its number for `cgtool dump --graph`"
)


def _key(priority: int) -> Column[LedgerRow]:
    return Column(
        "key",
        lambda row: ", ".join(row.keys) or row.size or "",
        wrap="cut",
        optional=True,
        priority=priority,
        explanation=(
            "the function that torch.compile compiled, or what was noted for the capture; "
            "otherwise a result's shape or a kernel's grid in which graphs of the line differ"
        ),
    )


_NODES: Column[LedgerRow] = Column(
    "nodes",
    format=lambda nodes: "—" if nodes is None else " to ".join(f"{count:,}" for count in nodes),
    priority=1,
    parts=("min", "max"),
    zero=False,
    numeric=True,
    explanation="fewest and most nodes of one graph",
)
_GPU: Column[LedgerRow] = Column(
    "GPU",
    "gpu_ns",
    optional=True,
    explanation="mean GPU time of a replay of one graph, from the start of its first node to the "
    "end of its last",
)
_GPU_SHARE: Column[LedgerRow] = Column(
    "of GPU",
    "gpu_share",
    optional=True,
    priority=1,
    explanation="share of the program's GPU time, all replays together",
)
_CAPTURE: Column[LedgerRow] = Column(
    "capture",
    "capture_ns",
    zero=False,
    numeric=True,
    explanation="host time of the captures, instantiation included",
)
_INTERVAL: Column[LedgerRow] = Column(
    "interval",
    "mean_interval_ns",
    optional=True,
    priority=2,
    explanation="mean time from one replay of a graph to its next",
)
_OF_ONE_GRAPH = _NODES, _GPU, _INTERVAL
"""All other figures of a line are sums over its graphs."""
_MEMORY: Sequence[Column[LedgerRow]] = (
    Column(
        "reserved",
        "reserved_bytes",
        zero=False,
        optional=True,
        priority=1,
        explanation="memory that PyTorch's allocator reserved during the captures",
    ),
    Column(
        "at once",
        "overlaps",
        zero=False,
        optional=True,
        priority=1,
        explanation="captures while another thread captured: each counts what both reserved",
    ),
    Column(
        "driver",
        "exec_bytes",
        zero=False,
        optional=True,
        priority=3,
        explanation="memory that the driver took for the executable graphs",
    ),
)
_REPLAYED_AT: Column[LedgerRow] = Column(
    "replayed at", lambda row: row.replayed_at or "", wrap="cut", optional=True, priority=3
)


def _findings(priority: int) -> Column[LedgerRow]:
    return Column(
        "findings",
        lambda row: ", ".join(row.findings),
        wrap="cut",
        optional=True,
        priority=priority,
    )


LINES: Sequence[Column[LedgerRow]] = (
    _OWNER,
    _LINE,
    Column("graphs"),
    Column(
        "again",
        "rerecords",
        zero=False,
        optional=True,
        style=WARNING,
        explanation="captured by torch.compile because an earlier one did not fit, or after "
        "`reset()`",
    ),
    Column(
        "unused",
        zero=False,
        optional=True,
        style=WARNING,
        explanation="graphs that were never replayed",
    ),
    Column(
        "failed",
        zero=False,
        optional=True,
        style=BAD,
        explanation="captures that ended with an error",
    ),
    _NODES,
    Column("replays"),
    _GPU,
    _GPU_SHARE,
    _CAPTURE,
    _INTERVAL,
    *_MEMORY,
    _REPLAYED_AT,
    _key(4),
    _findings(5),
)
GRAPHS: Sequence[Column[LedgerRow]] = (
    _NUMBER,
    _OWNER,
    _LINE,
    _key(1),
    _NODES,
    Column("replays"),
    _GPU,
    _GPU_SHARE,
    _CAPTURE,
    _INTERVAL,
    *_MEMORY,
    _REPLAYED_AT,
    Column("end", lambda row: row.end or "", wrap="cut", optional=True, priority=2),
    _findings(2),
)
_PLACES: Sequence[tuple[str, Column[LedgerRow]]] = (
    ("thread", Column("thread", lambda row: row.thread or "")),
    ("mode", Column("mode", lambda row: row.mode or "", explanation="capture error mode")),
    (
        "stream",
        Column(
            "stream",
            lambda row: "" if row.stream is None else hex(row.stream),
            explanation="the handle of the captured stream",
        ),
    ),
    ("pool", Column("pool", lambda row: row.pool or "", explanation="as `cgtool pools` shows it")),
)
"""Where a graph was captured, by the field of its row."""

_NotedRow = tuple[LedgerRow, Note]
_NOTED_GRAPH: Column[_NotedRow] = Column("graph", lambda row: row[0].number)
NOTES: Sequence[Column[_NotedRow]] = (
    Column("made by", lambda row: row[0].owner, priority=2),
    Column("line", lambda row: row[0].line),
    Column("key", lambda row: ", ".join(row[0].keys), wrap="cut", optional=True, priority=3),
    Column("note", lambda row: row[1].name, explanation="a name passed to `cgtool.note`"),
    Column("replays", lambda row: row[1].replays, explanation="replays with this note"),
    Column("min", lambda row: row[1].least, number_text, numeric=True, priority=1),
    Column("median", lambda row: row[1].median, number_text, numeric=True),
    Column("max", lambda row: row[1].most, number_text, numeric=True),
    Column(
        "padded to",
        lambda row: row[1].sizes,
        lambda sizes: "—" if sizes is None else " to ".join(map(number_text, sizes)),
        zero=False,
        optional=True,
        parts=("min", "max"),
        numeric=True,
    ),
    Column(
        "padding",
        lambda row: row[1].padding,
        percent_text,
        optional=True,
        explanation="share of what the graphs computed that was not needed",
    ),
)


EVENTS: Sequence[Column[EventRow]] = (
    Column("moment", "time_ns", explanation="from the start of the command"),
    Column("process", optional=True, priority=1),
    Column("rank", optional=True, priority=1),
    Column(
        "event",
        lambda row: "(end)" if row.name is None else row.name,
        wrap="cut",
        explanation="a name passed to `cgtool.event`, or `ready` of `--ready-after` and "
        "`--ready-output`; (end): of the process",
    ),
    Column("line", wrap="cut", priority=2),
    Column("replays", explanation="this and the next: since the event before, in the process"),
    Column("captures", explanation="failed ones included"),
    Column(
        "compiles",
        zero=False,
        optional=True,
        explanation="by torch.compile, and of kernels by Triton",
    ),
    Column(
        "allocations",
        zero=False,
        optional=True,
        priority=1,
        explanation="how often PyTorch's allocator reserved memory from the device",
    ),
    Column("reserved", "allocated_bytes", zero=False, optional=True, priority=1),
    Column(
        "given back",
        zero=False,
        optional=True,
        style=WARNING,
        explanation="storages outside the pools that graphs use, freed or resized",
    ),
    Column(
        "weights",
        optional=True,
        priority=1,
        explanation="parameters, buffers and optimizer state that graphs use",
    ),
    Column(
        "rebound",
        optional=True,
        style=WARNING,
        explanation="of these: the program now has other memory than its graphs use",
    ),
    Column(
        "rewritten",
        optional=True,
        explanation="of the others: with other values than at the event before",
    ),
)


EAGER: Sequence[Column[EagerRow]] = (
    Column("code", explanation="captured code that was called outside graphs"),
    Column("called at", "line"),
    Column("runs", explanation="calls, without those that warmed up a capture"),
    Column(
        "sizes",
        lambda row: " to ".join(row.sizes) or None,
        optional=True,
        priority=1,
        explanation="the smallest and the largest of the argument that decides",
    ),
    Column("why", optional=True, zero=False),
    Column(
        "would fit",
        "served_by",
        optional=True,
        explanation="the smallest captured size that would have served them",
    ),
    Column(
        "noted", lambda row: ", ".join(row.notes) or None, optional=True, priority=2, wrap="cut"
    ),
)


def _spent(heading: str, field: str, explanation: str, priority: int = 0) -> Column[LedgerRow]:
    return Column(
        heading,
        f"spent.{field}",
        zero=False,
        optional=True,
        priority=priority,
        explanation=explanation,
    )


REPLAYS: Sequence[Column[LedgerRow]] = (
    _NUMBER,
    _OWNER,
    _LINE,
    _key(1),
    Column("replays"),
    _GPU,
    _GPU_SHARE,
    Column("host", "host_ns", explanation="mean host time of a replay, without the first"),
    Column(
        "first replay",
        "first_host_ns",
        priority=1,
        explanation="its host time, with the upload of the graph and what the driver loads lazily",
    ),
)
CAPTURES: Sequence[Column[LedgerRow]] = (
    _OWNER,
    _LINE,
    Column("graphs", priority=3),
    _spent("warm-up", "warm_up_ns", "iterations that PyTorch runs before the capture"),
    _spent(
        "prepare",
        "prepare_ns",
        "in torch.cuda.graph before the capture: waiting for the device, emptying caches",
        2,
    ),
    _spent("code", "code_ns", "the captured code"),
    _spent(
        "compile",
        "compile_ns",
        "in the capture, in Triton and Inductor: compiling, tuning and loading kernels",
        1,
    ),
    _spent("collector", "collector_ns", "in the capture, Python's garbage collector", 2),
    _spent("instantiate", "instantiate_ns", "at the end of the capture", 1),
    _spent("cgtool", "cgtool_ns", "to read the graphs, not part of the other times", 4),
)

_ADDRESSES = "Captured addresses"
POOLS: Sequence[Column[ProgramPoolRow]] = (
    Column("pool", "name"),
    Column("process", zero=False, optional=True, priority=2),
    Column("graphs", explanation="captured into it"),
    Column(
        "kept by",
        lambda row: row.kept_by or "nothing",
        explanation="what kept it alive at the end of its last graph, or of the process",
    ),
    Column("reserved", "reserved_bytes"),
    Column("in use", "used_bytes"),
    Column(
        "free",
        "free_bytes",
        explanation="only a capture into this pool, on the same stream, can use it; if nothing "
        "keeps the pool, it is given back when caches are emptied",
    ),
    Column("streams", priority=1, explanation="streams that it was allocated for"),
    Column(
        "driver",
        "exec_bytes",
        optional=True,
        priority=1,
        explanation="memory of the driver for the executable graphs, not part of the pool",
    ),
)


ADDRESSES: Sequence[Column[MemoryRow]] = (
    Column(
        "memory",
        "kind",
        explanation="what leads to it when the graph was captured: parameter, buffer, gradient, "
        "optimizer state, variable; unknown: no name; pool: it lies in the pool of a graph, and "
        "must survive until a replay has read it",
    ),
    Column(
        "name",
        lambda row: row.names[0] if row.names else "",
        wrap="cut",
        optional=True,
        priority=1,
        explanation="the largest of them",
    ),
    Column(
        "allocated at",
        "allocated_at",
        optional=True,
        priority=2,
        explanation="the line, of the largest of them",
    ),
    Column("storages", "count"),
    Column("bytes"),
    Column("graphs", explanation="that use some of it"),
    Column("readers", priority=2, explanation="nodes of ops that read some of it"),
    Column("writers", priority=2, zero=False, explanation="nodes of ops that write some of it"),
    Column(
        "given back",
        lambda row: row.gone_at or "",
        wrap="cut",
        optional=True,
        explanation="while a graph that uses it could be replayed",
    ),
    Column(
        "replays since",
        "stale_replays",
        zero=False,
        optional=True,
        style=BAD,
        explanation="of graphs that use it",
    ),
)


GRAPH_MEMORY: Sequence[Column[GraphMemoryRow]] = (
    Column("graph", "number", explanation="its number for `cgtool dump --graph`"),
    Column("line", priority=1),
    Column(
        "key",
        wrap="cut",
        optional=True,
        explanation="its name, or a size in which it differs from others of the line",
    ),
    Column("pool"),
    Column(
        "pool grew",
        "grown_bytes",
        explanation="what its capture added to the memory that the pool has reserved",
    ),
    Column(
        "keeps",
        "kept_bytes",
        optional=True,
        explanation="what more of the pool is in use at its end, mostly by its results; later "
        "captures use the rest",
    ),
    Column(
        "driver",
        "exec_bytes",
        optional=True,
        explanation="memory of the driver for the executable graph",
    ),
    Column("added", "total_bytes", explanation="to the pool and in the driver"),
)


def render_pools(report: LedgerReport, *, explain: bool = False) -> Screen:
    """The memory pools of a program's graphs."""
    screen = Screen(simulated=report.simulated, explain=explain)
    sentence = "; ".join(_pool_sums(report.pools)) or (
        "no pool memory was read"
        if report.unread_pools
        else "no pool existed when a graph or a process ended"
    )
    screen.line(sentence, "bold")
    screen.line(_run(report), "dim")
    screen.table("Pools", POOLS, report.pools)
    screen.table("Memory by graph", GRAPH_MEMORY, report.graph_memory, name="graphs")
    for estimate in report.size_estimates:
        screen.line(estimate, "dim")
    screen.table(_ADDRESSES, ADDRESSES, report.memory, name="addresses")
    _notes(screen, report, _unread(report.unread_pools))
    return screen


def _pool_sums(pools: Sequence[ProgramPoolRow]) -> Iterator[str]:
    """Pools that nothing kept may have been there one after the other."""
    kept = [row for row in pools if row.kept_by]
    ended = [row.reserved_bytes for row in pools if not row.kept_by]
    if kept:
        reserved = bytes_text(sum(row.reserved_bytes for row in kept))
        free = bytes_text(sum(row.free_bytes for row in kept))
        count = count_text(len(kept), "pool")
        yield f"{count} with {reserved}, of which only later captures can use {free}"
    if len(ended) == 1:
        yield f"1 pool had {bytes_text(ended[0])} when its last graph ended"
    elif ended:
        count = count_text(len(ended), "pool")
        yield f"{count} had up to {bytes_text(max(ended))} each when their last graphs ended"


def render_times(report: LedgerReport, *, rows: int = 0, explain: bool = False) -> Screen:
    """Where the time of a program's replays and captures goes."""
    screen = Screen(simulated=report.simulated, explain=explain)
    screen.line(_times(report), "bold")
    screen.line(_run(report), "dim")
    replayed = [row for row in report.graphs if row.replays]
    replayed.sort(key=lambda row: (-(row.gpu_share or 0), -(row.replays or 0)))
    shown = replayed[: rows or None]
    screen.table("Replays", REPLAYS, shown, _rest(REPLAYS, replayed[len(shown) :], "graph"))
    lines = report.lines[: rows or None]
    screen.table("Captures", CAPTURES, lines)
    _notes(screen, report)
    return screen


def _times(report: LedgerReport) -> str:
    """``graphs take 1.20 s of 1.70 s of GPU time (71%); captures took 320 ms of host time``."""
    captures = (
        f"captures took {time_text(sum(row.capture_ns for row in report.lines))} of host time"
    )
    if report.simulated:
        return f"no GPU times on the simulated device; {captures}"
    if report.gpu_ns is None:
        return f"no GPU times (`cgtool run --times` records them); {captures}"
    inside = report.graphs_gpu_ns or 0
    return (
        f"graphs take {time_text(inside)} of {time_text(report.gpu_ns)} of GPU time "
        f"({percent_text(inside / report.gpu_ns if report.gpu_ns else None)}); {captures}"
    )


def render(
    report: LedgerReport, *, graphs: bool = False, rows: int = 0, explain: bool = False
) -> Screen:
    """The sentence, the ledger, and the findings. ``graphs``: a row for each graph; ``rows``: at
    most so many rows and findings, 0 for all."""
    screen = Screen(simulated=report.simulated, explain=explain)
    screen.line(f"{report.sentence}", "bold")
    if report.steps is not None:
        screen.line(report.steps, "bold")
    screen.line(_run(report), "dim")
    columns, lines = (GRAPHS, report.graphs) if graphs else (LINES, report.lines)
    shown = lines[: rows or None]
    rest = _rest(columns, lines[len(shown) :], "graph" if graphs else "line")
    screen.table("Graphs", columns, shown, rest)
    if graphs:
        _places(screen, report, shown)
    elif any(row.graphs > 1 for row in shown):
        screen.about(_OF_ONE_GRAPH, "of one graph; other figures: of all graphs of a line")
    eager = report.eager[: rows or None]
    others = report.eager[len(eager) :]
    total = {"code": f"{len(others):,} more", "runs": sum(row.runs for row in others)}
    screen.table("Eager", EAGER, eager, [total] if others else [])
    noted = [(row, note) for row in shown for note in row.notes]
    screen.table("Notes", (_NOTED_GRAPH, *NOTES) if graphs else NOTES, noted)
    screen.table("Events", EVENTS, report.events[: rows or None])
    _left_out(screen, len(report.events), rows, "event")
    gone = [row for row in report.memory if row.gone_at is not None]
    screen.table(_ADDRESSES, ADDRESSES, gone[: rows or None], name="addresses")
    screen.add(Findings(report.findings[: rows or None]))
    _left_out(screen, len(report.findings), rows, "finding")
    if report.failures:
        screen.parts.append("")
    failures = report.failures[: rows or None]
    screen.labeled((("capture failed", failure) for failure in failures), BAD)
    _notes(screen, report)
    return screen


def _left_out(screen: Screen, count: int, rows: int, noun: str) -> None:
    if 0 < rows < count:
        screen.line(f"{count_text(count - rows, f'more {noun}')}: --rows 0 shows all", "dim")


def _unread(pools: int) -> Sequence[str]:
    if not pools:
        return ()
    of, their = ("a pool", "its") if pools == 1 else (f"{pools:,} pools", "their")
    return (
        f"the memory of {of}: {their} process was killed, called `os._exit` or `os.exec...` while "
        "other threads ran, or still runs",
    )


def _places(screen: Screen, report: LedgerReport, shown: Sequence[LedgerRow]) -> None:
    """Where graphs were captured: a table of what differs between them, and what does not."""
    differs: list[Column[LedgerRow]] = []
    same: list[str] = []
    for field, column in _PLACES:
        texts = dict.fromkeys(
            filter(None, (column.text(column.cell(row)) for row in report.graphs))
        )
        if len(texts) > 1:
            differs.append(column)
        else:
            same += (text if text.startswith(field) else f"{field} {text}" for text in texts)
    if same:
        screen.line(f"all graphs: {', '.join(same)}", "dim")
    columns = (_NUMBER, _OWNER, _LINE, *differs)
    screen.table("Where graphs were captured", columns, shown if differs else (), name="where")


def _signal_of(status: int) -> str:
    """The name of the signal that an exit status stands for in a shell."""
    try:
        return f" ({signal.Signals(status - 128).name})"
    except ValueError:
        return ""


def _notes(screen: Screen, report: LedgerReport, more: Sequence[str] = ()) -> None:
    """The end of each screen: what is missing, and what the headings mean."""
    lost = (*report.lost, *more)
    if lost or report.caveats:
        screen.parts.append("")
    screen.labeled((("not recorded", reason) for reason in lost), WARNING)
    screen.labeled((("note", caveat.text) for caveat in report.caveats), WARNING)
    screen.legend()


def _run(report: LedgerReport) -> str:
    where = "the simulated device" if report.simulated else report.device
    facts = [f"{report.command}: {time_text(report.wall_ns)}"]
    if where:  # empty if nothing was captured: the device is read at the first capture
        facts[0] += f" on {where}"
    if report.processes > 1:
        facts.append(count_text(report.processes, "process", "processes"))
    if report.exit_status:
        facts.append(f"exit status {report.exit_status}{_signal_of(report.exit_status)}")
    return ", ".join(facts)


def _rest(
    columns: Sequence[Column[LedgerRow]], rows: Sequence[LedgerRow], noun: str
) -> list[dict[str, Any]]:
    """The rows that are not shown, as one."""
    if not rows:
        return []
    totals = {
        "made by": count_text(len(rows), f"more {noun}"),
        "graphs": sum(row.graphs for row in rows),
        "replays": total_of(row.replays for row in rows),
        "capture": sum(row.capture_ns for row in rows),
    }
    headings = {column.heading for column in columns}
    return [{heading: total for heading, total in totals.items() if heading in headings}]
