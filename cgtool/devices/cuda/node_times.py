"""The time of every node in a replay.

From CUPTI's activity records where cupti-python (an extra) is installed: the low half of a record's
``graph_node_id`` is the node's own number, so no order has to be guessed, and kernels of parallel
branches are kept apart. Elsewhere from PyTorch's profiler (``profiler_times``).

Recording copies and fills leaves microseconds of idle device around each, recording kernels a tenth
of one. So graphs that copy or fill are traced twice: once for kernels alone, which gives the time
line, and once for everything, which gives the duration of copies and fills.
"""

from __future__ import annotations

import importlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

import msgspec
import torch

from cgtool.devices.cuda import profiler_times
from cgtool.devices.cuda.cupti import CuptiBusy, CuptiUnavailable
from cgtool.devices.cuda.driver import graph_nodes
from cgtool.devices.cuda.event_times import busy, device_ns, empty_ns
from cgtool.devices.cuda.nodes import TIMED, type_of
from cgtool.devices.cuda.profiler_times import Span
from cgtool.devices.cuda.session import CudaSession
from cgtool.model.capture import Capture, Caveat, Edge, Graph
from cgtool.model.options import Progress

INSTALL = "pip install 'cgtool[cupti]'"
REPLAYS = 20
_MOST_RECORDS = 200_000
_BUFFER_BYTES = 8 << 20
_FLUSH_FORCED = 1
_HALF = 32
_LOW = (1 << _HALF) - 1


class Trace(msgspec.Struct, frozen=True):
    """The replays of one graph: medians, by index of the node."""

    whole: dict[int, Span]
    """Times while kernels, memcpys and memsets were recorded."""
    kernels: dict[int, Span] | None
    """Times while only kernels were recorded; None if the graph has only kernels."""
    spans_ns: tuple[float, ...]
    """By replay: first start to last end, where only kernels were recorded."""

    def placed(self, edges: Sequence[Edge]) -> dict[int, Span]:
        """The time line of the kernels, with copies and fills placed in its gaps.

        A copy or fill begins at the end of its last predecessor, and lasts as long as it did when
        it was recorded. ``edges`` are those of the graph.
        """
        if self.kernels is None:
            return self.whole
        sources: dict[int, list[int]] = defaultdict(list)
        targets: dict[int, list[int]] = defaultdict(list)
        for edge in edges:
            sources[edge.target].append(edge.source)
            targets[edge.source].append(edge.target)
        placed = dict(self.kernels)
        # Nodes are numbered in the order of creation: a predecessor has a smaller number.
        for node in sorted(set(self.whole) - set(self.kernels)):
            length = self.whole[node].duration_ns
            before = [placed[source] for source in sources[node] if source in placed]
            after = [placed[target] for target in targets[node] if target in placed]
            if before:
                start = max(span.end_ns for span in before)
            elif after:
                start = min(span.start_ns for span in after) - length
            else:
                start = self.whole[node].start_ns
            placed[node] = Span(start, length)
        first = min((span.start_ns for span in placed.values()), default=0)
        return {
            node: Span(span.start_ns - first, span.duration_ns) for node, span in placed.items()
        }


class _Record(msgspec.Struct, frozen=True, gc=False):
    node: int
    start: int
    end: int
    launch: int


class Tracer:
    """CUPTI's activity records in this process. Raises CuptiUnavailable, with the fix."""

    def __init__(self) -> None:
        try:
            self._cupti: Any = importlib.import_module("cupti.cupti")
        except ImportError as error:
            raise CuptiUnavailable(
                f"cupti-python cannot be imported ({error}): {INSTALL}"
            ) from error
        self._records: list[_Record] = []
        kinds = self._cupti.ActivityKind
        self._kernels = (kinds.CONCURRENT_KERNEL,)
        self._all = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
        self._callbacks = (lambda: (_BUFFER_BYTES, 0), self._completed)
        self._call(self._cupti.activity_register_callbacks, *self._callbacks)

    def _completed(self, activities: Iterable[Any]) -> None:
        for activity in activities:
            if activity.graph_node_id:
                self._records.append(
                    _Record(
                        activity.graph_node_id,
                        activity.start,
                        activity.end,
                        activity.correlation_id,
                    )
                )

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            # cupti-python raises its own classes, which differ from release to release.
            if "MULTIPLE_SUBSCRIBERS" in str(error):
                raise CuptiBusy(
                    "another profiler in this process has subscribed to CUPTI"
                ) from error
            raise CuptiUnavailable(f"CUPTI refused to record: {error}") from error

    def trace(self, graphs: Sequence[Any], replays: int = REPLAYS) -> list[Trace]:
        """Replay graphs in turn on the current stream; when the nodes of each ran.

        ``graphs`` are all of a session in the order of capture: the nodes of a backward overwrite
        what it reads, and only another forward writes that again. Raises CuptiUnavailable, also
        when nothing was recorded.
        """
        nodes = [graph_nodes(graph.raw_cuda_graph()) for graph in graphs]
        indices = [self._index(nodes_of_graph) for nodes_of_graph in nodes]
        types = [set(map(type_of, nodes_of_graph)) for nodes_of_graph in nodes]
        working = [
            number for number, node_types in enumerate(types) if node_types.intersection(TIMED)
        ]
        count = max(3, min(replays, _MOST_RECORDS // max(1, sum(map(len, indices)))))
        whole = self._replays(graphs, indices, working, self._all, count)
        if working and not any(whole):
            raise CuptiUnavailable(
                "cupti-python recorded nothing: another profiler receives CUPTI's records, or one "
                "that ran earlier in this process does"
            )
        kernels: list[list[dict[int, Span]]] = [[] for _ in graphs]
        if any(not node_types.isdisjoint(("memcpy", "memset")) for node_types in types):
            launching = [number for number in working if "kernel" in types[number]]
            kernels = self._replays(graphs, indices, launching, self._kernels, count)
        return [
            Trace(_medians(everything), _medians(alone), _lengths(alone))
            if alone
            else Trace(_medians(everything), None, _lengths(everything))
            for everything, alone in zip(whole, kernels, strict=True)
        ]

    def _index(self, nodes: Sequence[int]) -> dict[int, int]:
        """By its number in records, the index of each node of a graph."""
        number_of = self._cupti.get_graph_node_id
        return {int(self._call(number_of, node)) & _LOW: index for index, node in enumerate(nodes)}

    def _executable_numbers(self, graphs: Sequence[Any]) -> dict[int, int] | None:
        """Index of each graph by the number of its executable graph, which is the high half of the
        node number in a record; None if PyTorch does not expose the executable graph."""
        if not all(hasattr(graph, "raw_cuda_graph_exec") for graph in graphs):
            return None
        number_of = self._cupti.get_graph_exec_id
        return {
            int(self._call(number_of, int(graph.raw_cuda_graph_exec()))): index
            for index, graph in enumerate(graphs)
        }

    def _replays(
        self,
        graphs: Sequence[Any],
        indices: Sequence[dict[int, int]],
        recorded: Sequence[int],
        kinds: Sequence[Any],
        count: int,
    ) -> list[list[dict[int, Span]]]:
        """By graph and replay, the span of each node. ``recorded`` are the graphs that have nodes
        of these kinds."""
        cupti = self._cupti
        self._records.clear()
        try:
            for kind in kinds:
                self._call(cupti.activity_enable, kind)
            torch.cuda.synchronize()
            # While nodes are recorded, a launch takes longer than otherwise.
            launch_ns = [0] * len(graphs)
            for _ in range(count):
                for place, graph in enumerate(graphs):
                    busy(launch_ns[place])
                    clock = time.perf_counter_ns()
                    graph.replay()
                    launch_ns[place] = time.perf_counter_ns() - clock
                    torch.cuda.synchronize()
            self._call(cupti.activity_flush_all, _FLUSH_FORCED)
        finally:
            for kind in kinds:
                self._call(cupti.activity_disable, kind)
        launches: dict[int, list[_Record]] = defaultdict(list)
        for record in self._records:
            launches[record.launch].append(record)
        self._records.clear()
        by_graph: list[list[dict[int, Span]]] = [[] for _ in graphs]
        numbers = self._executable_numbers(graphs)
        met: dict[int, int] = {}
        for launch in sorted(launches):
            records = launches[launch]
            executable = records[0].node >> _HALF
            if numbers is None:
                # They were launched in this order.
                met.setdefault(executable, len(met))
                number = recorded[met[executable]] if met[executable] < len(recorded) else None
            else:
                number = numbers.get(executable)
            if number is None:
                continue
            first = min(record.start for record in records)
            index = indices[number]
            by_graph[number].append(
                {
                    index[record.node & _LOW]: Span(record.start - first, record.end - record.start)
                    for record in records
                    if record.node & _LOW in index
                }
            )
        return by_graph


def _lengths(replays: Iterable[dict[int, Span]]) -> tuple[float, ...]:
    return tuple(float(max(span.end_ns for span in spans.values())) for spans in replays if spans)


def _medians(replays: Sequence[dict[int, Span]]) -> dict[int, Span]:
    starts: dict[int, list[int]] = defaultdict(list)
    durations: dict[int, list[int]] = defaultdict(list)
    for spans in replays:
        for node, span in spans.items():
            starts[node].append(span.start_ns)
            durations[node].append(span.duration_ns)
    return {
        node: Span(round(median(starts_ns)), round(median(durations[node])))
        for node, starts_ns in starts.items()
    }


CUPTI, PROFILER = "cupti", "profiler"


class NodeTimes(msgspec.Struct, frozen=True):
    """Times of the nodes of a session's graphs, in the order of capture."""

    route: str
    """``cupti`` or ``profiler``, as in ``Profile``."""
    traces: tuple[Trace, ...] = ()
    replays: tuple[profiler_times.Replays, ...] = ()
    instead_of: str | None = None
    """Why the records do not name a node; None if they do."""

    def spans_ns(self) -> tuple[tuple[float, ...], ...]:
        """First start of a node to last end, by graph and replay."""
        if self.route == CUPTI:
            return tuple(trace.spans_ns for trace in self.traces)
        return tuple(tuple(profiler_times.lengths(replays)) for replays in self.replays)

    def add(self, capture: Capture) -> Capture:
        """The capture of that session with times on its nodes, and a caveat on nodes without."""
        if self.route == CUPTI:
            why = "CUPTI recorded none"
            spans = [
                trace.placed(graph.edges)
                for graph, trace in zip(capture.graphs, self.traces, strict=False)
            ]
        else:
            why = "no record of the profiler matches them"
            spans = [*map(_medians, profiler_times.spans_of(capture, self.replays))]
        # Graphs inside nodes are not replayed by themselves.
        spans += [{}] * (len(capture.graphs) - len(spans))
        graphs = tuple(map(_timed, capture.graphs, spans))
        without = sum(
            node.type in TIMED and node.duration_ns is None
            for graph in graphs
            for node in graph.nodes
        )
        caveats = list(capture.caveats)
        if without:
            caveats.append(Caveat("untimed", f"{without} nodes have no time: {why}"))
            if self.instead_of:
                caveats.append(Caveat("times-by-order", self.instead_of))
        return msgspec.structs.replace(capture, graphs=graphs, caveats=tuple(caveats))


def record(session: CudaSession, progress: Progress, replays: int = REPLAYS) -> NodeTimes:
    """Replay every graph under cupti-python, ``replays`` times; where it is not installed, under
    PyTorch's profiler.

    Raises CuptiBusy when another tool has subscribed to CUPTI, so that neither can record, and
    CuptiUnavailable when neither is available.
    """
    try:
        tracer = Tracer()
        progress("time nodes")
        with torch.cuda.stream(session.stream):
            traces = tracer.trace([graph.graph for graph in session.graphs], replays)
        return NodeTimes(CUPTI, tuple(traces))
    except CuptiBusy:
        raise
    except CuptiUnavailable as error:
        first = str(error)
    progress("time nodes with PyTorch's profiler")
    try:
        recorded = profiler_times.collect(session)
    except RuntimeError as error:
        raise CuptiUnavailable(f"{first}; PyTorch's profiler: {error}") from error
    if not any(records for replays in recorded for records in replays):
        raise CuptiBusy(f"{first}; PyTorch's profiler recorded nothing either")
    return NodeTimes(PROFILER, replays=tuple(recorded), instead_of=first)


def around_ns(replays: int) -> float | None:
    """Device time of a replay outside of its nodes, before the first and after the last: that of a
    graph of one kernel, without a profiler, less that of the kernel. None without cupti-python."""
    with suppress(CuptiUnavailable):
        tracer = Tracer()
        value = torch.zeros(1, device="cuda")
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            value.add_(1)
        graph.instantiate()
        [trace] = tracer.trace([graph], replays)
        whole = median(device_ns(graph.replay, replays)) - median(empty_ns(replays))
        return max(0.0, whole - median(trace.spans_ns))
    return None


def _timed(graph: Graph, spans: dict[int, Span]) -> Graph:
    nodes = tuple(
        msgspec.structs.replace(node, start_ns=span.start_ns, duration_ns=span.duration_ns)
        if (span := spans.get(node.id)) is not None
        else node
        for node in graph.nodes
    )
    return msgspec.structs.replace(graph, nodes=nodes)
