"""The figures of one entry, from its captures and its reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from cgtool.analysis.findings import Shown, is_hazard, show
from cgtool.analysis.gate.metrics import BY_NAME, METRICS, key, runs_of
from cgtool.analysis.graph.places import WORK, Places
from cgtool.analysis.memory.pools import live_bytes, reserved_bytes
from cgtool.analysis.timing.runs import calm, disturbances_of, merge_clocks, typical_clock
from cgtool.analysis.verify import TOO_NOISY
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture, Graph
from cgtool.model.finding import ERROR, Report
from cgtool.model.measurements import PHASES, Samples

_MIB = 1 << 20
_TYPES = {"kernels": "kernel", "copies": "memcpy", "memsets": "memset"}


class Measured(msgspec.Struct, frozen=True):
    """One target: its figures, and what they can be explained with."""

    name: str
    """The entry as the user typed it."""
    values: Baseline
    unknown: dict[str, str] = {}
    """Why a metric has no figure here, by the metric's name."""
    capture: Capture | None = None
    hazards: tuple[Shown, ...] = ()
    """What the metric ``findings`` counts."""
    reports: tuple[Report, ...] = ()
    notes: tuple[str, ...] = ()
    """What the reader must know to judge the figures, a sentence each."""


def measure(captures: Sequence[Capture] = (), reports: Sequence[Report] = ()) -> Measured:
    """All figures of one entry: counts from its first capture, times from all of them (each from
    a process of its own; those that ran on a disturbed GPU are left out while others are there),
    findings and mismatches from its reports.

    Raises ValueError when there is neither a capture nor a report.
    """
    first = captures[0] if captures else reports[0] if reports else None
    if first is None:
        raise ValueError("nothing was measured")
    capture = captures[0] if captures else None
    counts = count(capture) if capture is not None else {}
    hazards = _hazards(reports)
    unknown = _unknown(capture, reports)
    if "findings" not in unknown:
        counts["findings"] = len(hazards)
    if "mismatches" not in unknown:
        counts["mismatches"] = sum(map(_mismatches, reports))
    timed = calm(captures)
    clock = merge_clocks([one.bench.clock for one in timed if one.bench and one.bench.clock])
    values = Baseline(
        entry=first.entry,
        environment=first.environment,
        created=first.created,
        cgtool=first.cgtool,
        counts=counts,
        ops=_ops(capture) if capture is not None else {},
        capture_ns=() if unknown.get("capture-ms") else tuple(map(_capture_ns, captures)),
        samples=_samples(timed),
        clock=typical_clock(clock) if clock is not None else None,
    )
    for name in ("replay-us", "eager-us", "speedup"):
        if name not in unknown and not any(runs_of(values, BY_NAME[name], one) for one in PHASES):
            unknown[name] = "it was not timed; `cgtool bench ENTRY --save FILE.cgt` times it"
    return Measured(
        first.entry.spec,
        values,
        unknown,
        capture,
        hazards,
        tuple(reports),
        _notes(captures, len(captures) - len(timed)),
    )


def count(capture: Capture) -> dict[str, int | float]:
    """The exact figures of one capture, whole and by phase; bytes in MiB are exact in binary."""
    found: dict[str, int | float] = {}
    phases = [one for one in PHASES if any(graph.phase == one for graph in capture.graphs)]
    for metric in METRICS:
        if metric.source != "capture" or not metric.exact:
            continue
        if capture.environment.simulated and not metric.simulated:
            continue
        for phase in (None, *(phases if metric.phases else ())):
            chosen = [one for one in capture.graphs if phase in (None, one.phase)]
            figure = _figure(metric.name, capture, chosen)
            if figure is not None:
                found[key(metric.name, phase)] = figure
    return found


def _figure(name: str, capture: Capture, graphs: list[Graph]) -> int | float | None:
    if name == "graphs":
        return sum(graph.parent is None for graph in graphs)
    if name == "nodes":
        return sum(len(graph.nodes) for graph in graphs)
    if name == "edges":
        return sum(len(graph.edges) for graph in graphs)
    if name in _TYPES:
        return sum(node.type == _TYPES[name] for graph in graphs for node in graph.nodes)
    if name == "exec-mib":
        known = [graph.exec_bytes for graph in graphs if graph.exec_bytes is not None]
        return sum(known) / _MIB if known else None
    size = reserved_bytes if name == "pool-mib" else live_bytes
    return sum(map(size, capture.memory.pools)) / _MIB


def _ops(capture: Capture) -> dict[str, int]:
    places = Places(capture)
    counted = Counter(
        places.of(node).short_op or "(outside any op)"
        for graph in capture.graphs
        for node in graph.nodes
        if node.type in WORK
    )
    return dict(sorted(counted.items()))


def _capture_ns(capture: Capture) -> int:
    return sum(
        (graph.capture_ns or 0) + (graph.instantiate_ns or 0) + (graph.upload_ns or 0)
        for graph in capture.graphs
    )


def _samples(captures: Sequence[Capture]) -> tuple[Samples, ...]:
    """Device times of all runs, numbered through; rounds without a time are no rounds."""
    found: list[Samples] = []
    runs = 0
    for one in captures:
        mine = one.bench.samples if one.bench is not None else ()
        kept = [
            msgspec.structs.replace(
                each,
                run=runs + each.run,
                host_ns=(),
                device_ns=tuple(time for time in each.device_ns if time > 0),
            )
            for each in mine
            if each.name in ("eager", "replay") and any(time > 0 for time in each.device_ns)
        ]
        found += kept
        runs = max((each.run + 1 for each in kept), default=runs)
    return tuple(found)


def _hazards(reports: Sequence[Report]) -> tuple[Shown, ...]:
    shown = show(finding for one in reports if one.command == "check" for finding in one.findings)
    # The same hazard from two reports of one entry (a GPU's, the simulated device's) is one.
    unique = {(one.code, one.place, one.phase): one for one in shown if is_hazard(one)}
    return tuple(unique.values())


def _mismatches(report: Report) -> int:
    """Where no tensor differs, an error that ``verify`` found (work that missed the graph)."""
    if report.command != "verify":
        return 0
    errors = sum(one.severity == ERROR for one in show(report.findings))
    return sum(not one.equal for one in report.comparisons) or errors


def _unknown(capture: Capture | None, reports: Sequence[Report]) -> dict[str, str]:
    found: dict[str, str] = {}
    commands = {one.command for one in reports}
    for metric in METRICS:
        if metric.source in ("check", "verify"):
            if metric.source not in commands:
                found[metric.name] = (
                    f"it needs a report, of `cgtool {metric.source} ENTRY --format json`"
                )
        elif capture is None:
            found[metric.name] = "it needs a capture: `cgtool capture ENTRY -o FILE.cgt`"
        elif capture.environment.simulated and not metric.simulated:
            found[metric.name] = "the simulated device has no kernels and no GPU times"
        elif metric.name == "exec-mib" and all(one.exec_bytes is None for one in capture.graphs):
            found[metric.name] = "the capture does not say what the driver took"
        elif metric.name == "capture-ms" and not _capture_ns(capture):
            found[metric.name] = "the capture does not say how long it took"
    noisy = any(note.code == TOO_NOISY for one in reports for note in one.notes)
    if noisy and all(each.equal for one in reports for each in one.comparisons):
        found["mismatches"] = "eager differs too much from itself to hold a replay against it"
    return found


def _notes(captures: Sequence[Capture], left_out: int) -> tuple[str, ...]:
    found = []
    if left_out:
        why = next(reason for one in captures for reason in disturbances_of(one))
        found.append(f"{left_out} of {len(captures)} runs are left out of the times: {why}")
    counts = [count(one) for one in captures]
    for name in ("nodes", "pool-mib"):
        seen = sorted({each[name] for each in counts})
        if len(seen) > 1:
            found.append(
                f"{name} is not the same in every run: {', '.join(f'{one:g}' for one in seen)}; "
                "the first counts"
            )
    return tuple(found)
