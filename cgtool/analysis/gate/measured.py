"""The figures of one entry, from its captures and its reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from cgtool.analysis.gate.evidence import Measured, memory_of
from cgtool.analysis.gate.metrics import METRICS, count, has_figures, unrecorded
from cgtool.analysis.graph.places import WORK, Places
from cgtool.analysis.timing.runs import calm, disturbances_of, merge, typical_clock
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture
from cgtool.model.finding import Report
from cgtool.model.measurements import Bench, Samples


def measure(captures: Sequence[Capture] = (), reports: Sequence[Report] = ()) -> Measured:
    """All figures of one entry: counts from its first capture, times from all of them (each from
    a process of its own; those that ran on a disturbed GPU are left out while others are there),
    findings and mismatches from its reports.

    Raises ValueError when there is neither a capture nor a report.
    """
    if not (captures or reports):
        raise ValueError("nothing was measured")
    capture = captures[0] if captures else None
    first = capture or reports[0]
    is_timed = any(each.bench is not None for each in captures)
    bench = (merge(captures).bench if is_timed else None) or Bench()
    values = Baseline(
        entry=first.entry,
        environment=first.environment,
        created=first.created,
        cgtool=first.cgtool,
        counts={**(count(capture) if capture is not None else {}), **_reported(reports)},
        ops=_nodes_by_op(capture) if capture is not None else {},
        memory=memory_of(capture) if capture is not None else {},
        capture_ns=_capture_ns(captures),
        samples=_samples(bench),
        clock=typical_clock(bench.clock) if bench.clock is not None else None,
    )
    return Measured(
        values,
        _unknown(values, capture, reports),
        capture,
        tuple(reports),
        _notes(captures, len(captures) - len(calm(captures))),
    )


def _reported(reports: Sequence[Report]) -> dict[str, int]:
    counts = {}
    for metric in METRICS:
        own = [report for report in reports if report.command == metric.source]
        if metric.reported and own and (figure := metric.reported(own)) is not None:
            counts[metric.name] = figure
    return counts


def _nodes_by_op(capture: Capture) -> dict[str, int]:
    places = Places(capture)
    nodes = (node for graph in capture.graphs for node in graph.nodes if node.type in WORK)
    counts = Counter(places.of(node).short_op or "(outside any op)" for node in nodes)
    return dict(sorted(counts.items()))


def _capture_ns(captures: Sequence[Capture]) -> tuple[int, ...]:
    """The cost of each run; nothing if the first does not have it, or is simulated."""
    durations_ns = tuple(sum(graph.cost_ns for graph in capture.graphs) for capture in captures)
    known = durations_ns and durations_ns[0] and not captures[0].environment.simulated
    return durations_ns if known else ()


def _samples(bench: Bench) -> tuple[Samples, ...]:
    """Device times; rounds without a time are left out."""
    kept = (
        replace(
            samples,
            host_ns=(),
            device_ns=tuple(duration for duration in samples.device_ns if duration > 0),
        )
        for samples in bench.samples
        if samples.name in ("eager", "replay")
    )
    return tuple(samples for samples in kept if samples.device_ns)


def _unknown(
    values: Baseline, capture: Capture | None, reports: Sequence[Report]
) -> dict[str, str]:
    """Why a metric has no figure, by its name."""
    unknown: dict[str, str] = {}
    commands = {report.command for report in reports}
    simulated = values.environment.simulated
    for metric in METRICS:
        if metric.reported is not None and metric.source not in commands:
            reason = f"it needs a report of `cgtool {metric.source} ENTRY --format json`"
        elif metric.reported is None and capture is None:
            reason = "it needs a capture: `cgtool capture ENTRY -o FILE.cgt`"
        elif metric.reported is None and simulated and not metric.simulated:
            reason = "the simulated device has no kernels and no GPU times"
        elif capture is not None and (why := unrecorded(capture, metric)) is not None:
            reason = why
        elif not has_figures(values, metric):
            reason = metric.missing
        else:
            continue
        unknown[metric.name] = reason
    return unknown


def _notes(captures: Sequence[Capture], left_out: int) -> tuple[str, ...]:
    notes = []
    if left_out:
        reason = next(reason for capture in captures for reason in disturbances_of(capture))
        notes.append(f"{left_out} of {len(captures)} runs are left out of the times: {reason}")
    counts = [count(capture) for capture in captures]
    for name in ("nodes", "pool-mib"):
        figures = sorted({each[name] for each in counts if name in each})
        if len(figures) > 1:
            shown = ", ".join(f"{figure:g}" for figure in figures)
            notes.append(
                f"{name} differs from run to run: {shown}; the figure of the first run is used"
            )
    return tuple(notes)
