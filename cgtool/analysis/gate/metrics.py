"""The table of metrics: what can be gated, how each figure is read, and how it is explained.

Everything that names a metric is derived from its row: the options of ``cgtool gate``, the keys of
``[tool.cgtool.gate]``, the arguments of the pytest marker, the attributes of a captured graph in a
test, the baseline, the JSON, and the table in docs/cli.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import truediv

import msgspec

from cgtool.analysis.gate import evidence
from cgtool.analysis.gate.evidence import Evidence, EvidenceContext, hazards_of
from cgtool.analysis.ledger_events import (
    Happenings,
    allocations_of,
    captures_of,
    compiles_of,
    counts_since,
)
from cgtool.analysis.pools import driver_bytes, live_bytes, program_pools, reserved_bytes
from cgtool.analysis.reports import explain_findings, unanswered
from cgtool.analysis.units import count_text
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture, Graph, Pool
from cgtool.model.finding import ERROR, Report
from cgtool.model.ledger import LedgerGraph
from cgtool.model.measurements import PHASES, whole

RunSamples = tuple[tuple[float, ...], ...]
"""Samples of a time: one tuple for each run, which is one worker process."""

_MIB = 1 << 20


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table. Exactly one of ``counted``, ``after``, ``reported`` and ``timed`` reads
    it."""

    name: str
    """The name in options and ``pyproject.toml``; its last word is the unit."""
    means: str
    unit: str = ""
    """``MiB``, ``ms``, ``us``, ``x``; empty for a count."""
    source: str = "capture"
    """The command that measures it: ``capture``, ``bench``, ``check`` or ``verify``."""
    counted: Callable[[Capture, Sequence[Graph]], int | float | None] | None = None
    """Reads an exact figure of some graphs of a capture (all, or those of one phase), in the unit
    of the metric; None if the capture does not have it."""
    after: Happenings | None = None
    """Reads what happened to a program, which is counted after each of its events: the metric has a
    figure for each name of an event instead of each phase, and none for the whole."""
    reported: Callable[[Sequence[Report]], int | None] | None = None
    """Reads a count from the reports of ``source``; None if they do not have it."""
    timed: Callable[[Baseline, str], RunSamples] | None = None
    """Reads the samples of one phase, in the unit of the metric. Times are judged with an interval,
    all other figures exactly."""
    missing: str = ""
    """The reason to show if the reader finds no figure."""
    evidence: Callable[[EvidenceContext], Evidence] | None = None
    """Explains a figure that is over its budget."""
    larger_is_better: bool = False
    bounds: tuple[str, ...] = ("max",)
    """Its budgets: ``max``, ``min``."""
    watched: bool = False
    """Compared with a baseline by default, rather than only when a tolerance names it."""
    phases: bool = True
    """Also has a figure for each phase."""
    simulated: bool = True
    """Available on the simulated device."""
    host: bool = False
    """Host-dependent: another CPU gives another time."""
    of_nodes: bool = False
    """Reads the nodes of graphs, which `cgtool run` cannot always record."""
    of_captures: bool = True
    """Depends on all captures of a program."""

    @property
    def counts(self) -> bool:
        """Whether it is read from a capture, and exact."""
        return self.counted is not None or self.after is not None

    @property
    def exact(self) -> bool:
        """Whether it is counted rather than timed."""
        return self.timed is None


def _of_type(type_: str) -> Callable[[Capture, Sequence[Graph]], int]:
    return lambda _capture, graphs: sum(
        node.type == type_ for graph in graphs for node in graph.nodes
    )


def _mismatches(reports: Sequence[Report]) -> int | None:
    """Tensors that differ; if none does, errors of ``cgtool verify`` (work outside the graph)."""
    if any(map(unanswered, reports)) and all(
        each.equal for report in reports for each in report.comparisons
    ):
        return None
    return sum(
        sum(not comparison.equal for comparison in report.comparisons)
        or sum(finding.severity == ERROR for finding in explain_findings(report.findings))
        for report in reports
    )


def _device_us(name: str) -> Callable[[Baseline, str], RunSamples]:
    return lambda values, phase: tuple(
        tuple(duration_ns / 1e3 for duration_ns in rounds)
        for rounds in _rounds(values, name, phase).values()
    )


def _speedup(values: Baseline, phase: str) -> RunSamples:
    """Eager time divided by replay time, round by round."""
    eager, replay = _rounds(values, "eager", phase), _rounds(values, "replay", phase)
    return tuple(
        tuple(map(truediv, eager[run], replay[run])) for run in sorted(eager.keys() & replay.keys())
    )


def _rounds(values: Baseline, name: str, phase: str) -> dict[int, tuple[float, ...]]:
    """Device times in nanoseconds by run."""
    return {
        samples.run: samples.device_ns
        for samples in values.samples
        if (samples.name, samples.phase) == (name, phase)
    }


def _graphs(capture: Capture, graphs: Sequence[Graph]) -> int:
    """For a program, all graphs but those that only hold a pool, even if one could not be read."""
    if capture.ledger is None:
        return sum(graph.parent is None for graph in graphs)
    return sum(not entry.holds_a_pool and entry.failure is None for entry in capture.ledger.graphs)


def _of_pools(name: str, means: str, size: Callable[[Pool], int], *, live: bool) -> Metric:
    """Memory of all pools; those of a program as they were when each was read. Those that nothing
    kept then may have been there one after the other: the largest counts."""

    def counted(capture: Capture, _graphs: Sequence[Graph]) -> float | None:
        ledger = capture.ledger
        if ledger is None:
            return sum(map(size, capture.memory.pools)) / _MIB
        rows = program_pools(capture, ledger)
        sizes = [(row.used_bytes if live else row.reserved_bytes, row.kept_by) for row in rows]
        kept = sum(size for size, kept_by in sizes if kept_by)
        return max(kept, *(size for size, _ in sizes)) / _MIB if rows else None

    return Metric(
        name=name,
        means=means,
        unit="MiB",
        counted=counted,
        missing=(
            "the file has no pool memory: `cgtool run` reads it when the last graph of a pool, "
            "or its process, ends"
        ),
        evidence=partial(evidence.of_memory, live=live),
        watched=True,
        phases=False,
    )


_OF_PROGRAM = "only a file of `cgtool run PROGRAM` has this figure"


def _of_program(
    name: str,
    means: str,
    counts: Callable[[LedgerGraph], bool],
    *,
    missing: str = _OF_PROGRAM,
    needs_replays: bool = False,
) -> Metric:
    """The number of graphs of a program for which ``counts`` is true."""

    def counted(capture: Capture, _graphs: Sequence[Graph]) -> int | None:
        ledger = capture.ledger
        if ledger is None or (needs_replays and any(each.uncounted for each in ledger.graphs)):
            return None
        return sum(map(counts, ledger.graphs))

    return Metric(
        name=name,
        means=means,
        counted=counted,
        missing=missing,
        evidence=partial(evidence.of_ledger, counts=counts),
        watched=True,
        phases=False,
    )


def _graph_share(capture: Capture, _graphs: Sequence[Graph]) -> float | None:
    ledger = capture.ledger
    if ledger is None or not ledger.gpu_ns:
        return None
    return round(100 * (ledger.graphs_gpu_ns or 0) / ledger.gpu_ns, 2)


def _after_event(name: str, means: str, happenings: Happenings) -> Metric:
    return Metric(
        name=name,
        means=f"{means} after an event (`cgtool run`)",
        after=happenings,
        missing=_OF_PROGRAM,
        evidence=partial(evidence.of_events, happenings=happenings),
    )


_UNTIMED = "it was not timed; `cgtool bench ENTRY --save FILE.cgt` times it"

METRICS = (
    Metric(name="graphs", means="graphs captured", counted=_graphs, watched=True),
    Metric(
        name="nodes",
        means="nodes of all graphs; on the simulated device, ops",
        counted=lambda _capture, graphs: sum(len(graph.nodes) for graph in graphs),
        evidence=evidence.of_nodes,
        bounds=("max", "min"),
        watched=True,
        of_nodes=True,
    ),
    *(
        Metric(
            name=name,
            means=f"{type_} nodes",
            counted=_of_type(type_),
            evidence=partial(evidence.of_nodes, type_=type_),
            bounds=bounds,
            watched=True,
            simulated=False,
            of_nodes=True,
        )
        for name, type_, bounds in (
            ("kernels", "kernel", ("max", "min")),
            ("copies", "memcpy", ("max",)),
            ("memsets", "memset", ("max",)),
        )
    ),
    Metric(
        name="edges",
        means="dependencies between nodes",
        counted=lambda _capture, graphs: sum(len(graph.edges) for graph in graphs),
        evidence=evidence.of_nodes,
        of_nodes=True,
    ),
    _of_pools("pool-mib", "memory reserved for the pools", reserved_bytes, live=False),
    _of_pools(
        "live-mib",
        "memory of the pools still allocated when the capture, or the program, ends",
        live_bytes,
        live=True,
    ),
    Metric(
        name="exec-mib",
        means="memory of the driver for the executable graphs",
        unit="MiB",
        counted=lambda _capture, graphs: (
            None if (size := driver_bytes(graphs)) is None else size / _MIB
        ),
        missing="the capture does not say how much memory the driver took",
        phases=False,
        simulated=False,
        of_nodes=True,
    ),
    Metric(
        name="findings",
        means="errors and warnings of `cgtool check`",
        source="check",
        reported=lambda reports: len(hazards_of(reports)),
        evidence=evidence.of_findings,
        watched=True,
        phases=False,
    ),
    Metric(
        name="mismatches",
        means=(
            "tensors that differ between replay and eager, over all trials; if none does, errors "
            "of `cgtool verify`"
        ),
        source="verify",
        reported=_mismatches,
        missing="`cgtool verify` could not compare a replay with eager",
        evidence=evidence.of_mismatches,
        watched=True,
        phases=False,
    ),
    Metric(
        name="capture-ms",
        means="host time to capture, instantiate and upload all graphs",
        unit="ms",
        timed=lambda values, _phase: tuple((time_ns / 1e6,) for time_ns in values.capture_ns),
        missing="the capture does not say how long it took",
        evidence=evidence.of_capture_time,
        phases=False,
        simulated=False,
        host=True,
    ),
    Metric(
        name="replay-us",
        means="device time of one replay",
        unit="us",
        source="bench",
        timed=_device_us("replay"),
        missing=_UNTIMED,
        evidence=evidence.of_replay_time,
        watched=True,
        simulated=False,
    ),
    Metric(
        name="eager-us",
        means="device time of one eager iteration",
        unit="us",
        source="bench",
        timed=_device_us("eager"),
        missing=_UNTIMED,
        simulated=False,
        host=True,  # eager kernels wait for the host to launch them
    ),
    Metric(
        name="speedup",
        means="eager time divided by replay time",
        unit="x",
        source="bench",
        timed=_speedup,
        missing=_UNTIMED,
        larger_is_better=True,
        bounds=("min",),
        simulated=False,
        host=True,
    ),
    _of_program(
        "rerecords",
        "graphs captured again, by `torch.compile` or after `reset()` (`cgtool run`)",
        lambda entry: entry.because is not None,
    ),
    _of_program(
        "unused",
        "graphs that were never replayed (`cgtool run`)",
        lambda entry: entry.is_unused,
        missing="only a file of `cgtool run PROGRAM` that counts all replays has this figure",
        needs_replays=True,
    ),
    _of_program(
        "failed-captures",
        "captures that ended with an error (`cgtool run`)",
        lambda entry: entry.failure is not None,
    ),
    _after_event("captures-after", "captures", captures_of),
    _after_event("compiles-after", "compilations", compiles_of),
    _after_event("allocations-after", "allocations of device memory", allocations_of),
    Metric(
        name="graph-share",
        means="share of the GPU time that is spent in graphs (`cgtool run --times`)",
        unit="%",
        counted=_graph_share,
        missing="only a file of `cgtool run --times PROGRAM` has this figure",
        larger_is_better=True,
        bounds=("min",),
        phases=False,
        simulated=False,
        of_captures=False,
    ),
)
"""All metrics, in the order of options and tables."""

BY_NAME = {metric.name: metric for metric in METRICS}


def key(metric: str, phase: str | None) -> str:
    """``nodes``, ``nodes.forward``: how a figure is named in a baseline and in messages."""
    return metric if phase is None else f"{metric}.{phase}"


def metric_of(key: str) -> Metric | None:
    """The metric of a key: ``nodes`` of ``nodes.forward``."""
    return BY_NAME.get(key.partition(".")[0])


def count(capture: Capture) -> dict[str, int | float]:
    """The exact figures of one capture, for the whole and for each phase. Bytes are in MiB, which
    binary fractions hold exactly."""
    counts: dict[str, int | float] = {}
    captured = [phase for phase in PHASES if any(graph.phase == phase for graph in capture.graphs)]
    for metric in METRICS:
        if not metric.counts or (capture.environment.simulated and not metric.simulated):
            continue
        if unrecorded(capture, metric) is not None:
            continue
        if metric.after is not None and capture.ledger is not None:
            after = counts_since(capture.ledger, metric.after(capture, capture.ledger))
            counts |= {key(metric.name, event): figure for event, figure in after.items()}
        if metric.counted is None:
            continue
        for phase in (None, *(captured if metric.phases else ())):
            graphs = [graph for graph in capture.graphs if phase in (None, graph.phase)]
            figure = metric.counted(capture, graphs)
            if figure is not None:
                counts[key(metric.name, phase)] = figure
    return counts


def unrecorded(capture: Capture, metric: Metric) -> str | None:
    """Why a figure of a program would be too low; None if it is not."""
    ledger = capture.ledger
    if ledger is None or not metric.counts:
        return None
    if metric.of_captures and ledger.incomplete:
        return "not all captures could be recorded: `cgtool run FILE` says why"
    if metric.after is not None and not ledger.events:
        return (
            "the program marked no event: `cgtool.event`, `cgtool run --ready-after N PROGRAM`, or "
            "`--ready-output`"
        )
    if metric.of_nodes and ledger.unread:
        return f"the nodes of {count_text(ledger.unread, 'graph')} were not recorded"
    return None


def runs_of(values: Baseline, metric: Metric, phase: str | None) -> RunSamples:
    """Samples of a time in the metric's unit. Without a phase, those of the whole iteration:
    ``step``, ``both``, or ``forward``. Empty for a metric that is counted."""
    return metric.timed(values, phase or whole_phase(values)) if metric.timed else ()


def known(values: Baseline, metric: Metric, phase: str | None) -> bool:
    """Whether there is a figure."""
    if metric.exact:
        return key(metric.name, phase) in values.counts
    return bool(runs_of(values, metric, phase))


def has_figures(values: Baseline, metric: Metric) -> bool:
    """Whether there is a figure of the whole, of a phase, or after an event."""
    if metric.exact:
        return any(metric_of(key) is metric for key in values.counts)
    return any(runs_of(values, metric, phase) for phase in (None, *PHASES))


def whole_phase(values: Baseline) -> str:
    """The phase that is the whole iteration: of what was captured, not of what was timed."""
    return whole([name.removeprefix("graphs.") for name in values.counts])
