"""The table of metrics: what can be gated, how each figure is read, and how it is explained.

Everything that names a metric is derived from its row: the options of ``cgtool gate``, the keys of
``[tool.cgtool.gate]``, the arguments of the pytest marker, the attributes of a captured graph in a
test, the baseline, the JSON, and the table in docs/cli.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import truediv

import msgspec

from cgtool.analysis.gate import evidence
from cgtool.analysis.gate.evidence import Evidence, EvidenceContext, hazards_of
from cgtool.analysis.pools import driver_bytes, live_bytes, reserved_bytes
from cgtool.analysis.reports import explain_findings, unanswered
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture, Graph, Pool
from cgtool.model.finding import ERROR, Report
from cgtool.model.ledger import LedgerGraph
from cgtool.model.measurements import PHASES, whole

RunSamples = tuple[tuple[float, ...], ...]
"""Samples of a time: one tuple for each run, which is one worker process."""

_MIB = 1 << 20


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table. Exactly one of ``counted``, ``reported`` and ``timed`` reads it."""

    name: str
    """The name in options and ``pyproject.toml``; its last word is the unit."""
    means: str
    unit: str = ""
    """``MiB``, ``ms``, ``us``, ``x``; empty for a count."""
    source: str = "capture"
    """What measures it: ``capture``, ``bench``, ``check`` or ``verify``."""
    counted: Callable[[Capture, Sequence[Graph]], int | float | None] | None = None
    """Reads an exact figure of some graphs of a capture (all, or those of one phase), in the unit
    of the metric; None if the capture does not have it."""
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

    @property
    def exact(self) -> bool:
        """Whether it is counted rather than timed."""
        return self.timed is None


def _of_type(type_: str) -> Callable[[Capture, Sequence[Graph]], int]:
    return lambda _capture, graphs: sum(
        node.type == type_ for graph in graphs for node in graph.nodes
    )


def _exec_mib(_capture: Capture, graphs: Sequence[Graph]) -> float | None:
    size = driver_bytes(graphs)
    return None if size is None else size / _MIB


def _mismatches(reports: Sequence[Report]) -> int | None:
    """Where no tensor differs, errors of ``cgtool verify`` (work that missed the graph)."""
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
    """Of a program, those that could be read or not, without those that only hold a pool."""
    if capture.ledger is None:
        return sum(graph.parent is None for graph in graphs)
    return sum(not entry.holds_a_pool and entry.failure is None for entry in capture.ledger.graphs)


def _pools(
    size: Callable[[Pool], int],
) -> Callable[[Capture, Sequence[Graph]], float | None]:
    """In MiB; None of a program, of whose pools nothing is recorded."""
    return lambda capture, _graphs: (
        None if capture.ledger is not None else sum(map(size, capture.memory.pools)) / _MIB
    )


def _ledger_metrics() -> Iterator[Metric]:
    """Counts of a program's graphs."""
    rows: Sequence[tuple[str, str, Callable[[LedgerGraph], bool]]] = (
        (
            "rerecords",
            "graphs that `torch.compile` recorded again, in a program of `cgtool run`",
            lambda entry: entry.because is not None,
        ),
        (
            "unused",
            "graphs that a program of `cgtool run` never replayed",
            lambda entry: entry.is_unused,
        ),
        (
            "failed-captures",
            "captures of a program of `cgtool run` that ended with an error",
            lambda entry: entry.failure is not None,
        ),
    )
    for name, means, counts in rows:
        yield Metric(
            name=name,
            means=means,
            counted=partial(_entries, counts),
            missing="it is a figure of a program: `cgtool run PROGRAM`",
            evidence=partial(evidence.of_ledger, counts=counts),
            watched=True,
            phases=False,
        )


def _entries(
    counts: Callable[[LedgerGraph], bool], capture: Capture, _graphs: Sequence[Graph]
) -> int | None:
    return None if capture.ledger is None else sum(map(counts, capture.ledger.graphs))


_NO_POOLS = "a run keeps no memory of pools; `cgtool capture ENTRY` does"
_UNTIMED = "it was not timed; `cgtool bench ENTRY --save FILE.cgt` times it"

METRICS = (
    Metric(
        name="graphs",
        means="graphs captured",
        counted=_graphs,
        watched=True,
    ),
    Metric(
        name="nodes",
        means="nodes of all graphs; on the simulated device, ops",
        counted=lambda _capture, graphs: sum(len(graph.nodes) for graph in graphs),
        evidence=evidence.of_nodes,
        bounds=("max", "min"),
        watched=True,
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
    ),
    Metric(
        name="pool-mib",
        means="memory reserved for the pools",
        unit="MiB",
        counted=_pools(reserved_bytes),
        missing=_NO_POOLS,
        evidence=partial(evidence.of_memory, live=False),
        watched=True,
        phases=False,
    ),
    Metric(
        name="live-mib",
        means="memory of the pools still allocated when the capture ends",
        unit="MiB",
        counted=_pools(live_bytes),
        missing=_NO_POOLS,
        evidence=partial(evidence.of_memory, live=True),
        watched=True,
        phases=False,
    ),
    Metric(
        name="exec-mib",
        means="memory of the driver for the executable graphs",
        unit="MiB",
        counted=_exec_mib,
        missing="the capture does not say how much memory the driver took",
        phases=False,
        simulated=False,
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
        means="tensors that differ between replay and eager, over all trials; where none does, "
        "errors of `cgtool verify`",
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
    *_ledger_metrics(),
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
    """The exact figures of one capture, of the whole and by phase; bytes in MiB are exact in
    binary."""
    counts: dict[str, int | float] = {}
    captured = [phase for phase in PHASES if any(graph.phase == phase for graph in capture.graphs)]
    for metric in METRICS:
        if metric.counted is None or (capture.environment.simulated and not metric.simulated):
            continue
        for phase in (None, *(captured if metric.phases else ())):
            graphs = [graph for graph in capture.graphs if phase in (None, graph.phase)]
            figure = metric.counted(capture, graphs)
            if figure is not None:
                counts[key(metric.name, phase)] = figure
    return counts


def runs_of(values: Baseline, metric: Metric, phase: str | None) -> RunSamples:
    """Samples of a time in the metric's unit. Without a phase, those of the whole iteration:
    ``step``, ``both``, or ``forward``. None of a metric that is counted."""
    return metric.timed(values, phase or whole_phase(values)) if metric.timed else ()


def known(values: Baseline, metric: Metric, phase: str | None) -> bool:
    """Whether there is a figure."""
    if metric.exact:
        return key(metric.name, phase) in values.counts
    return bool(runs_of(values, metric, phase))


def whole_phase(values: Baseline) -> str:
    """The phase that is the whole iteration: of what was captured, not of what was timed."""
    return whole([name.removeprefix("graphs.") for name in values.counts])
