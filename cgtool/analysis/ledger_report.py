"""The report on a program's ledger: one sentence, a row for each line that captures (or for each
graph), and findings."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from cgtool.analysis.eager_steps import EagerRow, eager_rows, sentence_of_steps
from cgtool.analysis.graph.places import file_line
from cgtool.analysis.graph_memory import GraphMemoryRow, estimates, graph_memory
from cgtool.analysis.ledger_costs import CaptureTime, capture_time
from cgtool.analysis.ledger_events import EventRow, event_rows
from cgtool.analysis.ledger_findings import (
    LineGraphs,
    by_line,
    in_unused_pools,
    ledger_findings,
    reserved_text,
)
from cgtool.analysis.ledger_memory import MemoryRow, memory_rows
from cgtool.analysis.ledger_notes import Note, notes_of
from cgtool.analysis.ledger_sizes import sizes_of
from cgtool.analysis.pools import ProgramPoolRow, program_pools, unread_pools
from cgtool.analysis.reports import ExplainedFinding, explain_findings, lines_of
from cgtool.analysis.units import count_text, extremes, percent_text, time_text, total_of
from cgtool.model.capture import Capture, Caveat, Frame
from cgtool.model.finding import Finding
from cgtool.model.ledger import Ledger, LedgerGraph


@dataclass(frozen=True)
class LedgerRow:
    """The graphs that one line captures, or one of them."""

    owner: str
    line: str
    """The one that captures; if several lines call its function, the one that calls it."""
    keys: tuple[str, ...]
    """The owner's names of them, where it has some."""
    size: str | None
    """Where the row is one graph without a name: a size in which it differs from others of the
    line."""
    number: int | None
    """Where the row is one graph: its number for ``dump --graph``; None if it has no nodes."""
    graphs: int
    nodes: tuple[int, ...]
    """The fewest and the most of a graph; one number if they are equal."""
    kernels: tuple[int, ...]
    """Counts of the nodes that are kernels, and of the copies; empty on the simulated device,
    whose nodes are ops."""
    copies: tuple[int, ...]
    capture_ns: int
    reserved_bytes: int | None
    overlaps: int
    """Captures while another was in progress: each counts in ``reserved_bytes`` what both did."""
    replays: int | None
    """None if they could not be counted."""
    rerecords: int
    """Graphs that were captured again: by ``torch.compile``, because an earlier one did not fit, or
    after the program had reset them."""
    unused: int
    """Graphs that were never replayed."""
    failed: int
    exec_bytes: int | None
    """The driver's memory for the executable graphs."""
    mean_interval_ns: int | None
    """Between two replays of one graph."""
    replayed_at: str | None
    """The line that replays most of them; if several lines call its function, the one that calls
    it."""
    replay_lines: dict[str, int]
    """All of these, with how often each was seen: as of ``ReplayPlace``."""
    first_replay_ns: int | None
    """This and the next count from the start of the command."""
    last_replay_ns: int | None
    end: str | None
    """Where the row is one graph: ``reset``, ``freed``, or the error that ended its capture."""
    findings: tuple[str, ...]
    """The codes of the findings that are about these graphs."""
    notes: tuple[Note, ...]
    """What the program noted for its replays."""
    gpu_ns: int | None
    """Mean GPU time of a replay; None without ``--times``."""
    gpu_share: float | None
    """Share of the GPU time of the program, all replays together."""
    host_ns: int | None
    """Mean host time of a replay, without the first of each graph."""
    first_host_ns: int | None
    """Mean host time of the first replay of a graph."""
    spent: CaptureTime
    thread: str | None
    """This and the next three: None if they differ between the graphs, or are not known."""
    mode: str | None
    """The capture error mode."""
    stream: int | None
    """Its handle."""
    pool: str | None
    """Its name, as of ``ProgramPoolRow``."""


@dataclass(frozen=True)
class LedgerReport:
    """The screen of ``cgtool run``."""

    command: str
    device: str
    simulated: bool
    processes: int
    wall_ns: int
    exit_status: int | None
    graphs_gpu_ns: int | None
    """GPU time inside graphs, and all of it; None without ``--times``."""
    gpu_ns: int | None
    sentence: str
    steps: str | None
    """How many steps ran in graphs, and why the others did not; None if all of those that were
    followed did."""
    eager: tuple[EagerRow, ...]
    lines: tuple[LedgerRow, ...]
    graphs: tuple[LedgerRow, ...]
    """Rows for single graphs, in order of their capture."""
    events: tuple[EventRow, ...]
    """Moments that the program marked, in order of time, and the end of each process that has
    some."""
    memory: tuple[MemoryRow, ...]
    """The memory that graphs use and have not allocated."""
    graph_memory: tuple[GraphMemoryRow, ...]
    """In order of their capture."""
    size_estimates: tuple[str, ...]
    """What one more size would add, by line."""
    pools: tuple[ProgramPoolRow, ...]
    unread_pools: int
    """Pools whose memory was not read."""
    findings: tuple[ExplainedFinding, ...]
    failures: tuple[str, ...]
    """Failed captures that no finding is about: line and error."""
    caveats: tuple[Caveat, ...]
    lost: tuple[str, ...]


def ledger_report(capture: Capture) -> LedgerReport:
    """The report on the ledger of a capture. Raises ValueError for a capture without one."""
    ledger = capture.ledger
    if ledger is None:
        raise ValueError("not a capture of a program")
    groups = by_line(capture, ledger)
    findings = explain_findings(ledger_findings(capture))
    sizes, replaying = sizes_of(capture, ledger), _replay_lines(capture, ledger)
    lines: list[LedgerRow] = []
    graphs: list[tuple[LedgerGraph, LedgerRow]] = []
    for group in groups:
        for line, entries in group.by_caller():
            lines.append(_row(capture, group.owner, line, entries, findings, replaying))
            for entry in entries:
                row = _row(capture, group.owner, line, [entry], findings, replaying)
                size = sizes.get(-1 if entry.graph is None else entry.graph)
                graphs.append((entry, replace(row, size=size)))
    memory = graph_memory(capture, ledger)
    graphs.sort(key=lambda pair: (pair[0].process, pair[0].number))
    return LedgerReport(
        command=shlex.join(ledger.command),
        device=capture.environment.device,
        simulated=capture.environment.simulated,
        processes=len(ledger.processes),
        wall_ns=ledger.wall_ns,
        exit_status=ledger.exit_status,
        graphs_gpu_ns=ledger.graphs_gpu_ns,
        gpu_ns=ledger.gpu_ns,
        sentence=sentence_of(ledger),
        steps=sentence_of_steps(capture, ledger),
        eager=eager_rows(capture, ledger),
        lines=tuple(sorted(lines, key=lambda row: (-(row.replays or 0), -row.capture_ns))),
        graphs=tuple(row for _, row in graphs),
        events=event_rows(capture, ledger),
        memory=memory_rows(capture, ledger),
        graph_memory=memory,
        size_estimates=estimates(memory),
        pools=program_pools(capture, ledger),
        unread_pools=unread_pools(capture, ledger),
        findings=findings,
        failures=tuple(_failures(groups)),
        caveats=capture.caveats,
        lost=ledger.lost,
    )


def _replay_lines(capture: Capture, ledger: Ledger) -> Mapping[tuple[int, ...], Frame | None]:
    """By the calls that lead to a replay: the line that replays, or if several lines call its
    function, the one that calls it."""
    calls = {replay.frames for each in ledger.graphs for replay in each.replayed_at}
    chains = {each: tuple(capture.frames[frame] for frame in each) for each in calls}
    lines = lines_of(chains.values())
    return {each: lines[frames] for each, frames in chains.items()}


def _failures(groups: Sequence[LineGraphs]) -> Iterator[str]:
    for group in groups:
        errors = Counter(each.failure for each in group.entries if each.diagnosis is None)
        for error, times in errors.items():
            if error is not None:
                place = file_line(group.place)
                yield f"{place}: {error}" + (f" ({count_text(times, 'time')})" * (times > 1))


def _row(
    capture: Capture,
    owner: str,
    line: Frame | None,
    entries: Sequence[LedgerGraph],
    findings: Sequence[Finding],
    replaying: Mapping[tuple[int, ...], Frame | None],
) -> LedgerRow:
    gpu_ns = capture.ledger and capture.ledger.gpu_ns
    numbers = {each.graph for each in entries}
    about = [finding.code for finding in findings if not numbers.isdisjoint(finding.graphs)]
    causes = [each.diagnosis.code for each in entries if each.diagnosis is not None]
    nodes = [capture.graphs[each.graph].nodes for each in entries if each.graph is not None]
    types = [Counter(node.type for node in of_graph) for of_graph in nodes]
    types = [] if capture.environment.simulated else types
    places: Counter[str] = Counter()
    for each in entries:
        for replay in each.replayed_at:
            places[file_line(replaying[replay.frames])] += replay.seen
    spans = [
        (each.last_replay_ns - each.first_replay_ns, each.replays - 1)
        for each in entries
        if each.replays > 1 and each.first_replay_ns is not None and each.last_replay_ns is not None
    ]
    intervals = sum(count for _, count in spans)
    only = entries[0] if len(entries) == 1 else None
    timed = sum(each.timed_replays for each in entries)
    replay_ns = sum(each.replay_gpu_ns for each in entries)
    firsts = [each for each in entries if each.first_replay_host_ns is not None]
    first_ns = sum(each.first_replay_host_ns or 0 for each in firsts)
    later = sum(each.replays for each in firsts) - len(firsts)
    return LedgerRow(
        owner=owner,
        line=file_line(line),
        keys=tuple(dict.fromkeys(each.key for each in entries if each.key)),
        size=None,
        number=only.graph if only else None,
        graphs=sum(each.failure is None for each in entries),
        nodes=extremes(map(len, nodes)),
        kernels=extremes(each["kernel"] for each in types),
        copies=extremes(each["memcpy"] for each in types),
        capture_ns=sum(each.capture_ns for each in entries),
        reserved_bytes=total_of(each.reserved_bytes for each in entries),
        overlaps=sum(each.overlaps for each in entries),
        replays=total_of(each.counted for each in entries),
        rerecords=sum(each.because is not None for each in entries),
        unused=sum(each.is_unused for each in entries),
        failed=sum(each.failure is not None for each in entries),
        exec_bytes=total_of(
            capture.graphs[each.graph].exec_bytes for each in entries if each.graph is not None
        ),
        mean_interval_ns=sum(span for span, _ in spans) // intervals if intervals else None,
        replayed_at=places.most_common(1)[0][0] if places else None,
        replay_lines=dict(places.most_common()),
        first_replay_ns=min(_known(each.first_replay_ns for each in entries), default=None),
        last_replay_ns=max(_known(each.last_replay_ns for each in entries), default=None),
        end=(only.failure or only.end) if only else None,
        gpu_ns=replay_ns // timed if timed else None,
        gpu_share=replay_ns / gpu_ns if timed and gpu_ns else None,
        host_ns=(sum(each.replay_host_ns for each in firsts) - first_ns) // later
        if later
        else None,
        first_host_ns=first_ns // len(firsts) if firsts else None,
        spent=capture_time(entries),
        findings=tuple(dict.fromkeys((*causes, *about))),
        notes=notes_of(entries),
        thread=_common(each.thread or None for each in entries),
        mode=_common(each.mode or None for each in entries),
        stream=_common(each.stream for each in entries),
        pool=_common(_pool(capture, each) for each in entries),
    )


_Value = TypeVar("_Value")


def _known(values: Iterable[_Value | None]) -> Iterator[_Value]:
    return (value for value in values if value is not None)


def _common(values: Iterable[_Value | None]) -> _Value | None:
    """The value that all have; None if they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _pool(capture: Capture, entry: LedgerGraph) -> str | None:
    pool = None if entry.graph is None else capture.graphs[entry.graph].pool
    return None if pool is None else capture.memory.pools[pool].name


def sentence_of(ledger: Ledger) -> str:
    """``6 graphs, 249 replays, 71% of GPU time; 2 graphs were never replayed: 41.0 ms and 38.0 MiB
    wasted``. Memory of a pool that a graph in use shares is not wasted."""
    captures = [each for each in ledger.graphs if not each.holds_a_pool]
    skips = sum(skip.times for skip in ledger.skips)
    graphs = [each for each in captures if each.failure is None]
    replays = sum(each.replays for each in graphs)
    uncounted = any(each.uncounted for each in graphs)
    counted = "at least " if uncounted and not ledger.incomplete else ""
    counted += count_text(replays, "replay") if replays or not uncounted else "replays not counted"
    at_least = "at least " if ledger.incomplete else ""
    parts = [f"{at_least}{count_text(len(graphs), 'graph')}, {counted}"]
    if ledger.gpu_ns:
        parts[0] += f", {percent_text((ledger.graphs_gpu_ns or 0) / ledger.gpu_ns)} of GPU time"
    if not captures:
        parts = [
            "no CUDA graph was recorded"
            if ledger.incomplete
            else "the program captured no CUDA graph"
        ]
    if stale := sum(each.stale_replays() for each in graphs):
        verb = "uses" if stale == 1 else "use"
        parts.append(f"{count_text(stale, 'replay')} {verb} memory that was given back")
    unused = [each for each in graphs if each.is_unused]
    if unused and not ledger.failed_early:
        cost = [time_text(sum(each.capture_ns for each in unused))]
        of_these = in_unused_pools(unused, ledger)
        if reserved := reserved_text(of_these):
            cost.append(reserved)
        verb = "was" if len(unused) == 1 else "were"
        parts.append(
            f"{count_text(len(unused), 'graph')} {verb} never replayed: {' and '.join(cost)} wasted"
        )
    if rerecords := sum(each.because is not None for each in graphs):
        parts.append(f"{rerecords:,} captured again")
    if failed := len(captures) - len(graphs):
        parts.append(f"{count_text(failed, 'capture')} failed")
    if skips:
        parts.append(f"torch.compile skipped {count_text(skips, 'capture')}")
    return "; ".join(parts)
