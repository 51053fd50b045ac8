"""Why a figure is over its budget: the ops, modules, lines and allocations behind it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cgtool.analysis.diff.sentence import modules_are, outer_modules
from cgtool.analysis.graph.places import WORK, Places, file_line
from cgtool.analysis.ledger_events import Happening, Happenings, first_times, since
from cgtool.analysis.ledger_findings import by_line
from cgtool.analysis.pools import ProgramPoolRow, peak_of, program_pools
from cgtool.analysis.reports import (
    ExplainedFinding,
    caller_of,
    difference_text,
    explain_findings,
    is_hazard,
    place_of,
)
from cgtool.analysis.units import count_text, time_text
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture, Entry, Frame
from cgtool.model.finding import ERROR, Report
from cgtool.model.ledger import LedgerGraph

SHOWN = 5
_MIB = 1 << 20
_LITTLE = 0.01
"""A smaller share of the memory is not worth naming."""
_IN = " in "


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
    over_limit: bool = False
    """The figure is over a limit, rather than worse than that of the baseline."""


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
    return _more_nodes(context._replace(phase=phase))


def _more_nodes(context: EvidenceContext) -> Evidence:
    """The nodes that are new, where any are."""
    nodes = of_nodes(context)
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


def of_events(context: EvidenceContext, *, happenings: Happenings) -> Evidence:
    """The lines that did most of what happened after an event, and the first of each."""
    capture, event = context.measured.capture, context.phase
    if capture is None or capture.ledger is None or event is None:
        return Evidence()
    times = first_times(capture.ledger)[event]
    lines: dict[tuple[Frame | None, Frame | None], list[Happening]] = defaultdict(list)
    for each in since(times, happenings(capture, capture.ledger)):
        lines[place_of(each.frames), caller_of(each.frames)].append(each)
    chosen = sorted(lines.items(), key=lambda line: -len(line[1]))
    texts = []
    for (place, caller), here in chosen[:SHOWN]:
        first = min(here, key=lambda each: each.time_ns)
        text = f"{len(here):,} at {file_line(place) or 'an unknown line'}"
        text += f", called at {file_line(caller)}" if caller else ""
        text += ", the first " if here[1:] else ", "
        text += f"{time_text(first.time_ns - times[first.process])} after {event}"
        texts.append(text + (f": {first.text}" if first.text else ""))
    if chosen[SHOWN:]:
        texts.append(f"at {count_text(len(chosen) - SHOWN, 'more line')}")
    return Evidence(tuple(texts), chosen[0][0][0] if chosen else None)


# --- memory


def of_memory(context: EvidenceContext, *, live: bool) -> Evidence:
    """The allocations that hold most memory, by op and line: at the end of the capture (``live``),
    or at the peak. With a baseline, the modules and blocks that it does not have, and what has
    grown where they are less than the increase. Of a program, its pools."""
    capture, baseline = context.measured.capture, context.baseline
    if capture is None:
        return Evidence()
    if capture.ledger is not None:
        rows = program_pools(capture, capture.ledger)[:SHOWN]
        return Evidence(tuple(_of_pool(row, live=live) for row in rows))
    blocks = _blocks(capture)
    held = Counter({name: each.sizes[live] for name, each in blocks.items()})
    if baseline is not None and not baseline.memory:
        # It was saved by an earlier version.
        return _more_nodes(context)
    saved = {} if baseline is None else baseline.memory
    before = Counter({name: sizes[live] for name, sizes in saved.items()})
    more = held - before
    if baseline is None or (context.over_limit and not more):
        return _listed_blocks(held, blocks, "")
    new = Counter({name: size for name, size in more.items() if name not in saved})
    if new.total() < held.total() - before.total():
        new |= more
    had = {outer for name in saved for outer in outer_modules(name.partition(_IN)[2])}
    added = {
        next(outer for outer in outers if outer not in had)
        for name in new
        if (outers := outer_modules(blocks[name].module)) and outers[-1] not in had
    }
    evidence = _listed_blocks(new, blocks, "+")
    first = [f"{modules_are(added)} new"] if added else []
    return Evidence((*first, *evidence.lines), evidence.frame)


def memory_of(capture: Capture) -> dict[str, tuple[int, int]]:
    """Bytes at the peak and at the end of the capture, by op and module (``mm in layers.0``); zero
    where all was freed, or nothing allocated."""
    return {name: each.sizes for name, each in sorted(_blocks(capture).items())}


def _listed_blocks(held: Counter[str], blocks: Mapping[str, _Blocks], sign: str) -> Evidence:
    lines: list[str] = []
    first: Frame | None = None
    for name, size in held.most_common(SHOWN):
        if lines and size < _LITTLE * held.total():
            break
        frame = blocks[name].frame
        first = first or frame
        lines.append(
            f"{sign}{size / _MIB:.4g} MiB: {name}" + (f" at {file_line(frame)}" if frame else "")
        )
    return Evidence(tuple(lines), first)


def _of_pool(row: ProgramPoolRow, *, live: bool) -> str:
    size = row.used_bytes if live else row.reserved_bytes
    kept = f", kept by {row.kept_by}" if row.kept_by else ""
    return f"{size / _MIB:.4g} MiB: {row.name} of {count_text(row.graphs, 'graph')}{kept}"


class _Blocks(NamedTuple):
    """The allocations of one op in one module."""

    module: str
    frame: Frame | None
    """The line of one of them."""
    sizes: tuple[int, int]
    """Bytes at the peak, and at the end."""


def _blocks(capture: Capture) -> dict[str, _Blocks]:
    """By op and module; workspaces of cuBLAS belong to no module, whichever is the first to
    multiply."""
    places = Places(capture)
    blocks: dict[str, _Blocks] = {}
    _, peak = peak_of(capture.memory.allocations)

    def add(origin: int | None, label: str | None, at_peak: int, at_end: int) -> None:
        place = places.of_origin(origin)
        op, module = place.short_op or "(no op)", place.module or ""
        if label == "cuBLAS workspace":
            op, module = label, ""
        name = f"{op}{_IN}{module}" if module else op
        known = blocks.get(name, _Blocks(module, place.line, (0, 0)))
        sizes = known.sizes[0] + at_peak, known.sizes[1] + at_end
        blocks[name] = known._replace(sizes=sizes)

    for each in capture.memory.allocations:
        size, freed = each.bytes, each.freed_at
        is_at_peak = each.allocated_at <= peak and (freed is None or freed > peak)
        add(each.origin, each.label, size * is_at_peak, size * (freed is None))
    for graph in capture.graphs:
        for node in graph.nodes:
            add(node.origin, None, 0, 0)
    return blocks


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
