"""Why a figure is over its budget: the ops, modules, lines and allocations behind it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cgtool.analysis.graph.places import WORK, Places, file_line
from cgtool.analysis.ledger_findings import by_line
from cgtool.analysis.pools import ProgramPoolRow, peak_of, program_pools
from cgtool.analysis.reports import (
    ExplainedFinding,
    difference_text,
    explain_findings,
    is_hazard,
)
from cgtool.analysis.units import count_text
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture, Entry, Frame
from cgtool.model.finding import ERROR, Report
from cgtool.model.ledger import LedgerGraph

SHOWN = 5
_MIB = 1 << 20
_LITTLE = 0.01
"""A smaller share of the memory is not worth naming."""


class Measured(msgspec.Struct, frozen=True):
    """One target: its figures, and the data that explains them."""

    values: Baseline
    unknown: dict[str, str] = {}
    """Why a metric has no figure here, by the metric's name."""
    capture: Capture | None = None
    reports: tuple[Report, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes that the reader needs to judge the figures, one sentence each."""


class EvidenceContext(NamedTuple):
    """The data from which a figure is explained."""

    measured: Measured
    phase: str | None
    baseline: Baseline | None
    """An earlier state of the code, which shows which ops are new."""
    compared: Capture | None
    """The capture of the baseline, which also shows in which module an op is new."""


class Evidence(msgspec.Struct, frozen=True):
    """One line each, the most important first, and the user's line that causes most of it."""

    lines: tuple[str, ...] = ()
    frame: Frame | None = None


def explain(
    how: Callable[[EvidenceContext], Evidence] | None, context: EvidenceContext
) -> Evidence:
    """The evidence of a metric; if no line is responsible, its frame is the entry itself."""
    measured = context.measured
    evidence = how(context) if how is not None else Evidence()
    entry = measured.capture.entry if measured.capture is not None else measured.values.entry
    frame = evidence.frame
    if frame is None and entry.file is not None and entry.line is not None:
        frame = Frame(entry.file, entry.line, "")
    return Evidence(evidence.lines, as_typed(frame, entry) if frame is not None else None)


def as_typed(frame: Frame, entry: Entry) -> Frame:
    """The frame with its file named as the user named the entry's: a capture that was made in
    another folder, or on another machine, names its files there."""
    file, _, _ = entry.spec.rpartition(":")
    if entry.file is None or not file.endswith(".py") or file.startswith("/"):
        return frame
    root = entry.file.removesuffix(file.removeprefix("./"))
    if root == entry.file or not frame.file.startswith(root):
        return frame
    return msgspec.structs.replace(frame, file=frame.file.removeprefix(root))


# --- nodes

_Group = tuple[str, str]
"""Op and module, which stay the same when lines move."""
_Lines = Mapping[_Group, Counter[Frame | None]]
"""Numbers of nodes by group and by the line that they come from."""


def _lines_of(capture: Capture, phase: str | None, type_: str | None) -> _Lines:
    places = Places(capture)
    lines: dict[_Group, Counter[Frame | None]] = defaultdict(Counter)
    types = WORK if type_ is None else (type_,)
    for graph in capture.graphs:
        for node in graph.nodes if phase in (None, "both", graph.phase) else ():
            if node.type in types:
                place = places.of(node)
                lines[place.short_op or "(outside any op)", place.module or ""][place.line] += 1
    return lines


def _counts(lines: _Lines) -> Counter[_Group]:
    return Counter({group: counted.total() for group, counted in lines.items()})


def of_nodes(context: EvidenceContext, type_: str | None = None) -> Evidence:
    """The nodes (of one type) that are new, where that is known and any are; else the ops with most
    nodes."""
    capture, phase, compared = context.measured.capture, context.phase, context.compared
    if capture is None:
        return Evidence()
    lines = _lines_of(capture, phase, type_)
    if compared is not None:
        new = _counts(lines) - _counts(_lines_of(compared, phase, type_))
        if len(new) > SHOWN:
            modules = Counter(op for op, _ in new)
            return _listed(*_by_op(new, lines), "+", modules)
        if new:
            return _listed(new, lines, "+")
    ops, lines = _by_op(_counts(lines), lines)
    baseline = context.baseline if compared is None and type_ is None else None
    if baseline is not None and baseline.ops and phase is None:
        new_ops = ops - Counter({(op, ""): count for op, count in baseline.ops.items()})
        if new_ops:
            return _listed(new_ops, lines, "+")
    return _listed(ops, lines, "")


def of_replay_time(context: EvidenceContext) -> Evidence:
    """Evidence for a slower replay: often it does more."""
    if context.baseline is None and context.compared is None:
        return Evidence()
    phase = None if context.phase == "both" else context.phase
    nodes = of_nodes(context._replace(phase=phase))
    if nodes.lines and nodes.lines[0].startswith("+"):
        return Evidence(("the graph has more nodes:", *nodes.lines), nodes.frame)
    return Evidence()


def _by_op(counted: Counter[_Group], places: _Lines) -> tuple[Counter[_Group], _Lines]:
    """Counts and lines by op, whatever the module."""
    ops: Counter[_Group] = Counter()
    lines: dict[_Group, Counter[Frame | None]] = defaultdict(Counter)
    for (op, module), nodes in counted.items():
        ops[op, ""] += nodes
        lines[op, ""] += places[op, module]
    return ops, lines


def _listed(
    counted: Counter[_Group], places: _Lines, sign: str, modules: Counter[str] | None = None
) -> Evidence:
    """One line per group; ``modules`` is the number of modules that an op is in."""
    lines: list[str] = []
    first: Frame | None = None
    for group, nodes in counted.most_common(SHOWN):
        op, module = group
        text = f"{sign}{nodes:,} {op}"
        if modules is not None and modules[op] > 1:
            text += f" in {modules[op]:,} modules"
        elif module:
            text += f" in {module}"
        frame, there = places[group].most_common(1)[0]
        first = first or frame
        if frame is not None and len(places[group]) == 1:
            text += f" at {file_line(frame)}"
        elif frame is not None:
            # It is unknown which of them are new.
            every = f" of all {places[group].total():,}" if sign else ""
            text += f" ({there:,}{every} at {file_line(frame)})"
        lines.append(text)
    rest = counted.total() - sum(nodes for _, nodes in counted.most_common(SHOWN))
    if rest:
        lines.append(f"{sign}{rest:,} more, of {count_text(len(counted) - SHOWN, 'other op')}")
    return Evidence(tuple(lines), first)


# --- programs


def of_ledger(context: EvidenceContext, *, counts: Callable[[LedgerGraph], bool]) -> Evidence:
    """The lines that capture most of the graphs that ``counts`` selects, with one reason each."""
    capture = context.measured.capture
    if capture is None or capture.ledger is None:
        return Evidence()
    lines = [
        (line, chosen)
        for line in by_line(capture, capture.ledger)
        if (chosen := list(filter(counts, line.entries)))
    ]
    lines.sort(key=lambda pair: -len(pair[1]))
    texts = []
    for line, chosen in lines[:SHOWN]:
        reason = (chosen[0].failure or chosen[0].because or "").partition("\n")[0]
        text = f"{len(chosen):,} of {count_text(len(line.entries), 'capture')} at "
        texts.append(text + file_line(line.place) + (f": {reason}" if reason else ""))
    return Evidence(tuple(texts), lines[0][0].place if lines else None)


# --- memory


def of_memory(context: EvidenceContext, *, live: bool) -> Evidence:
    """The allocations that hold most memory, by op and line: at the end of the capture (``live``),
    or at the peak. With a capture to compare, what is new in them. Of a program, its pools."""
    capture, compared = context.measured.capture, context.compared
    if capture is None:
        return Evidence()
    if capture.ledger is not None:
        rows = program_pools(capture, capture.ledger)[:SHOWN]
        return Evidence(tuple(_of_pool(row, live=live) for row in rows))
    (held, places), sign = _held(capture, live=live), ""
    if compared is not None:
        held, sign = held - _held(compared, live=live)[0], "+"
    lines: list[str] = []
    first: Frame | None = None
    for (op, module), size in held.most_common(SHOWN):
        if lines and size < _LITTLE * held.total():
            break
        frame = places[op, module]
        first = first or frame
        inside = f" in {module}" if module else ""
        at = f" at {file_line(frame)}" if frame else ""
        lines.append(f"{sign}{size / _MIB:.4g} MiB: {op}{inside}{at}")
    return Evidence(tuple(lines), first)


def _of_pool(row: ProgramPoolRow, *, live: bool) -> str:
    size = row.used_bytes if live else row.reserved_bytes
    kept = f", kept by {row.kept_by}" if row.kept_by else ""
    return f"{size / _MIB:.4g} MiB: {row.name} of {count_text(row.graphs, 'graph')}{kept}"


def _held(capture: Capture, *, live: bool) -> tuple[Counter[_Group], dict[_Group, Frame | None]]:
    """Bytes by op and module, and a line of each: of what is live at the end, or of what was live
    at the peak."""
    places = Places(capture)
    sizes: Counter[_Group] = Counter()
    lines: dict[_Group, Frame | None] = {}
    allocations = capture.memory.allocations
    _, peak = peak_of(allocations)
    for allocation in allocations:
        freed = allocation.freed_at
        at_peak = allocation.allocated_at <= peak and (freed is None or freed > peak)
        if freed is None if live else at_peak:
            place = places.of_origin(allocation.origin)
            op = place.short_op or "(no op)"
            if allocation.label == "cuBLAS workspace":
                op = allocation.label
            group = (op, place.module or "")
            sizes[group] += allocation.bytes
            lines.setdefault(group, place.line)
    return sizes, lines


# --- reports and times


def hazards_of(reports: Sequence[Report]) -> tuple[ExplainedFinding, ...]:
    """Errors and warnings of ``cgtool check``. The same hazard from two reports of one entry (one
    of a GPU, one of the simulated device) counts once."""
    shown = explain_findings(
        finding for report in reports if report.command == "check" for finding in report.findings
    )
    unique = {
        (finding.code, finding.place, finding.phase): finding
        for finding in shown
        if is_hazard(finding)
    }
    return tuple(unique.values())


def of_findings(context: EvidenceContext) -> Evidence:
    """The findings of ``cgtool check``."""
    return _findings(hazards_of(context.measured.reports))


def _findings(findings: Sequence[ExplainedFinding]) -> Evidence:
    lines = []
    for finding in findings[:SHOWN]:
        at = f" at {file_line(finding.place)}" if finding.place else ""
        lines.append(f"{finding.severity} {finding.code}{at}: {finding.reason}")
    if findings[SHOWN:]:
        lines.append(f"and {len(findings) - SHOWN:,} more")
    frame = next((finding.place for finding in findings if finding.place is not None), None)
    return Evidence(tuple(lines), frame)


def of_mismatches(context: EvidenceContext) -> Evidence:
    """The tensors that differ, and the errors that ``cgtool verify`` names as their cause."""
    reports = [report for report in context.measured.reports if report.command == "verify"]
    different = [
        comparison
        for report in reports
        for comparison in report.comparisons
        if not comparison.equal
    ]
    lines = [
        f"{comparison.name}, {comparison.trial}: "
        + (comparison.mismatch or f"differs by up to {difference_text(comparison.largest)}")
        for comparison in different[:SHOWN]
    ]
    if different[SHOWN:]:
        lines.append(f"and {len(different) - SHOWN:,} more")
    causes = _findings(
        [
            finding
            for report in reports
            for finding in explain_findings(report.findings)
            if finding.severity == ERROR
        ]
    )
    return Evidence((*lines, *causes.lines), causes.frame)


def of_capture_time(context: EvidenceContext) -> Evidence:
    """Capture, instantiation and upload of each graph, the longest first."""
    capture = context.measured.capture
    parts = []
    for graph in capture.graphs if capture is not None else ():
        if graph.capture_ns is not None:
            text = f"{graph.name}: capture {graph.capture_ns / 1e6:.3g} ms"
            if graph.instantiate_ns is not None:
                text += f", instantiate {graph.instantiate_ns / 1e6:.3g} ms"
            if graph.upload_ns is not None:
                text += f", upload {graph.upload_ns / 1e6:.3g} ms"
            parts.append((graph.capture_ns + (graph.instantiate_ns or 0), text))
    parts.sort(reverse=True)
    return Evidence(tuple(text for _, text in parts[:SHOWN]))
