"""What brought a figure over its budget: the ops, modules, lines and allocations behind it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import msgspec

from cgtool.analysis.findings import Shown, show
from cgtool.analysis.gate.measured import Measured
from cgtool.analysis.gate.metrics import Metric
from cgtool.analysis.graph.places import WORK, Place, Places, file_line
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Allocation, Capture, Entry, Frame, Node
from cgtool.model.finding import ERROR

SHOWN = 5
_TYPES = {"kernels": ("kernel",), "copies": ("memcpy",), "memsets": ("memset",)}
_MIB = 1 << 20
_LITTLE = 0.01
"""A smaller share of the memory explains nothing."""


class Evidence(msgspec.Struct, frozen=True):
    """A line each, the weightiest first, and the user's line that has most to do with it."""

    lines: tuple[str, ...] = ()
    frame: Frame | None = None


def explain(
    measured: Measured,
    metric: Metric,
    phase: str | None,
    baseline: Baseline | None = None,
    compared: Capture | None = None,
) -> Evidence:
    """Why the figure is what it is. With ``compared``, a capture, what is new since then; with a
    baseline alone, which ops are; else what there is most of."""
    capture = measured.capture
    found = Evidence()
    if metric.name == "findings":
        found = _findings(measured.hazards)
    elif metric.name == "mismatches":
        found = _mismatches(measured)
    elif capture is None:
        pass
    elif metric.name in ("pool-mib", "live-mib"):
        found = _memory(capture, compared, live=metric.name == "live-mib")
    elif metric.name == "capture-ms":
        found = _capture_time(capture)
    elif metric.name in ("nodes", "edges", *_TYPES):
        types = _TYPES.get(metric.name)
        found = _nodes(capture, phase, types, compared, None if types else baseline)
    elif metric.name == "replay-us" and (baseline is not None or compared is not None):
        found = _more_work(capture, phase, compared, baseline)
    entry = capture.entry if capture is not None else measured.values.entry
    frame = found.frame
    if frame is None and entry.file is not None and entry.line is not None:
        frame = Frame(entry.file, entry.line, "")
    return Evidence(found.lines, as_typed(frame, entry) if frame is not None else None)


def as_typed(frame: Frame, entry: Entry) -> Frame:
    """The file as the user would name it from where the entry was named: a capture that was made
    in another folder, or on another machine, names its files there."""
    file, _, _ = entry.spec.rpartition(":")
    if entry.file is None or not file.endswith(".py") or file.startswith("/"):
        return frame
    root = entry.file.removesuffix(file.removeprefix("./"))
    if root == entry.file or not frame.file.startswith(root):
        return frame
    return msgspec.structs.replace(frame, file=frame.file.removeprefix(root))


# --- nodes

_Group = tuple[str, str]
"""Op and module: what stays the same where lines move."""


class _Counted(msgspec.Struct):
    nodes: Counter[_Group]
    places: dict[_Group, Counter[Frame | None]]


def _count(capture: Capture, phase: str | None, types: tuple[str, ...] | None) -> _Counted:
    places = Places(capture)
    found = _Counted(Counter(), defaultdict(Counter))
    for node, place in _chosen(capture, places, phase, types):
        del node
        group = (place.short_op or "(outside any op)", place.module or "")
        found.nodes[group] += 1
        found.places[group][place.line] += 1
    return found


def _chosen(
    capture: Capture, places: Places, phase: str | None, types: tuple[str, ...] | None
) -> Iterator[tuple[Node, Place]]:
    for graph in capture.graphs:
        if phase in (None, "both", graph.phase):
            for node in graph.nodes:
                if node.type in (types or WORK):
                    yield node, places.of(node)


def _nodes(
    capture: Capture,
    phase: str | None,
    types: tuple[str, ...] | None,
    compared: Capture | None,
    baseline: Baseline | None,
) -> Evidence:
    """What is new, where that is known and anything is; else what there is most of."""
    here = _count(capture, phase, types)
    if compared is not None:
        new = here.nodes - _count(compared, phase, types).nodes
        if len(new) > SHOWN:
            return _listed(*_by_op(new, here.places), "+", Counter(op for op, _ in new))
        if new:
            return _listed(new, here.places, "+")
    ops, places = _by_op(here.nodes, here.places)
    if compared is None and baseline is not None and baseline.ops and phase is None:
        new_ops = ops - Counter({(op, ""): count for op, count in baseline.ops.items()})
        if new_ops:
            return _listed(new_ops, places, "+")
    return _listed(ops, places, "")


def _by_op(
    counted: Counter[_Group], places: dict[_Group, Counter[Frame | None]]
) -> tuple[Counter[_Group], dict[_Group, Counter[Frame | None]]]:
    """The same, whatever the module."""
    ops: Counter[_Group] = Counter()
    found: dict[_Group, Counter[Frame | None]] = defaultdict(Counter)
    for (op, module), nodes in counted.items():
        ops[op, ""] += nodes
        found[op, ""] += places[op, module]
    return ops, found


def _listed(
    counted: Counter[_Group],
    places: dict[_Group, Counter[Frame | None]],
    sign: str,
    modules: Counter[str] | None = None,
) -> Evidence:
    """A line a group; ``modules`` says in how many modules an op is."""
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
            # Which of them are the new ones, nobody can tell.
            every = f" of all {places[group].total():,}" if sign else ""
            text += f" ({there:,}{every} at {file_line(frame)})"
        lines.append(text)
    rest = counted.total() - sum(nodes for _, nodes in counted.most_common(SHOWN))
    if rest:
        lines.append(f"{sign}{rest:,} more, of {count_of(len(counted) - SHOWN, 'other op')}")
    return Evidence(tuple(lines), first)


def count_of(count: int, name: str) -> str:
    """``1 other kind``, ``3 other kinds``."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _more_work(
    capture: Capture, phase: str | None, compared: Capture | None, baseline: Baseline | None
) -> Evidence:
    """A replay that got slower: often because it does more."""
    found = _nodes(capture, None if phase == "both" else phase, None, compared, baseline)
    if found.lines and found.lines[0].startswith("+"):
        return Evidence(("the graph has more to do:", *found.lines), found.frame)
    return Evidence()


# --- memory


def _memory(capture: Capture, compared: Capture | None, *, live: bool) -> Evidence:
    """The allocations that hold most, by op and line; what is new in them since ``compared``."""
    here, places = _held(capture, live=live)
    new, sign = here, ""
    if compared is not None:
        new, sign = here - _held(compared, live=live)[0], "+"
    lines: list[str] = []
    first: Frame | None = None
    for group, size in new.most_common(SHOWN):
        if lines and size < _LITTLE * new.total():
            break
        frame, label = places[group]
        first = first or frame
        at = f" at {file_line(frame)}" if frame else ""
        lines.append(f"{sign}{size / _MIB:.4g} MiB: {label}{at}")
    return Evidence(tuple(lines), first)


def _held(
    capture: Capture, *, live: bool
) -> tuple[Counter[_Group], dict[_Group, tuple[Frame | None, str]]]:
    """Bytes by module and op: of what is live at the end, or of what was live at the peak."""
    places = Places(capture)
    sizes: Counter[_Group] = Counter()
    where: dict[_Group, tuple[Frame | None, str]] = {}
    held: Callable[[Allocation], bool] = _alive_at_peak(capture)
    for one in capture.memory.allocations:
        if one.freed_at is not None if live else not held(one):
            continue
        place = places.of_origin(one.origin)
        op = one.label if one.label == "cuBLAS workspace" else place.short_op or "(no op)"
        group = (op, place.module or "")
        sizes[group] += one.bytes
        module = f" in {place.module}" if place.module else ""
        where.setdefault(group, (place.line, f"{op}{module}"))
    return sizes, where


def _alive_at_peak(capture: Capture) -> Callable[[Allocation], bool]:
    changes: list[tuple[int, int]] = []
    for one in capture.memory.allocations:
        changes.append((one.allocated_at, one.bytes))
        if one.freed_at is not None:
            changes.append((one.freed_at, -one.bytes))
    now = best = peak = 0
    for event, change in sorted(changes):
        now += change
        if now > best:
            best, peak = now, event
    return lambda one: one.allocated_at <= peak and (one.freed_at is None or one.freed_at > peak)


# --- the rest


def _findings(hazards: tuple[Shown, ...]) -> Evidence:
    lines = []
    for one in hazards[:SHOWN]:
        at = f" at {file_line(one.place)}" if one.place else ""
        lines.append(f"{one.severity} {one.code}{at}: {one.reason}")
    if hazards[SHOWN:]:
        lines.append(f"and {len(hazards) - SHOWN:,} more")
    frame = next((one.place for one in hazards if one.place is not None), None)
    return Evidence(tuple(lines), frame)


def _mismatches(measured: Measured) -> Evidence:
    apart = [
        one
        for report in measured.reports
        if report.command == "verify"
        for one in report.comparisons
        if not one.equal
    ]
    lines = [
        f"{one.name}, {one.trial}: differs by up to "
        f"{'not a number' if one.largest is None else f'{one.largest:.3g}'}"
        for one in apart[:SHOWN]
    ]
    if apart[SHOWN:]:
        lines.append(f"and {len(apart) - SHOWN:,} more")
    causes = [
        one
        for report in measured.reports
        if report.command == "verify"
        for one in show(report.findings)
        if one.severity == ERROR
    ]
    why = _findings(tuple(causes))
    return Evidence((*lines, *why.lines), why.frame)


def _capture_time(capture: Capture) -> Evidence:
    parts = []
    for graph in capture.graphs:
        if graph.capture_ns is not None:
            text = f"{graph.name}: capture {graph.capture_ns / 1e6:.3g} ms"
            if graph.instantiate_ns is not None:
                text += f", instantiate {graph.instantiate_ns / 1e6:.3g} ms"
            if graph.upload_ns is not None:
                text += f", upload {graph.upload_ns / 1e6:.3g} ms"
            parts.append((graph.capture_ns + (graph.instantiate_ns or 0), text))
    parts.sort(reverse=True)
    return Evidence(tuple(text for _, text in parts[:SHOWN]))
