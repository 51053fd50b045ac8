"""The time of every node in a replay, by the best way that this machine has."""

from __future__ import annotations

from contextlib import suppress
from statistics import median

import msgspec
import torch

from cgtool.devices.cuda import times
from cgtool.devices.cuda.capturing import Session
from cgtool.devices.cuda.cupti import CuptiBusy, CuptiUnavailable
from cgtool.devices.cuda.nodes import TIMED
from cgtool.devices.cuda.roofs import device_ns, empty_ns
from cgtool.devices.cuda.tracing import REPLAYS, Trace, Tracer
from cgtool.model.capture import Capture, Caveat, Graph
from cgtool.model.options import Progress

CUPTI, PROFILER = "cupti", "profiler"


class NodeTimes(msgspec.Struct, frozen=True):
    """What was recorded of the graphs of a session, in the order of capture."""

    route: str
    """``cupti`` or ``profiler``, as in ``Profile``."""
    traces: tuple[Trace, ...] = ()
    replays: tuple[times.Replays, ...] = ()
    instead_of: str | None = None
    """Why the records name no node."""

    def spans_ns(self) -> tuple[tuple[float, ...], ...]:
        """First start of a node to last end, by graph and replay."""
        if self.route == CUPTI:
            return tuple(one.spans_ns for one in self.traces)
        return tuple(tuple(times.lengths(one)) for one in self.replays)

    def add(self, capture: Capture) -> Capture:
        """The capture of that session with a time on every node, and a word on those without."""
        if self.route == PROFILER:
            made = times.add(capture, self.replays)
            if self.instead_of and any(one.code == "untimed" for one in made.caveats):
                made = _with(made, Caveat("times-by-order", self.instead_of))
            return made
        graphs = list(capture.graphs)
        for index, trace in enumerate(self.traces):
            graphs[index] = _timed(graphs[index], trace)
        made = msgspec.structs.replace(capture, graphs=tuple(graphs))
        without = sum(
            node.type in TIMED and node.duration_ns is None
            for graph in graphs
            for node in graph.nodes
        )
        if without:
            word = Caveat("untimed", f"{without} nodes have no time: CUPTI recorded none")
            made = _with(made, word)
        return made


def record(session: Session, progress: Progress, replays: int = REPLAYS) -> NodeTimes:
    """Replay every graph under a profiler, so many times where CUPTI's records name the node.

    Through cupti-python where it is installed; else by PyTorch's own profiler, whose records name
    no node: their order has to tell. Raises CuptiBusy when another tool holds CUPTI, so that
    neither can, and CuptiUnavailable when neither is there.
    """
    try:
        tracer = Tracer()
        progress("time nodes")
        with torch.cuda.stream(session.stream):
            traces = tracer.trace([one.graph for one in session.captured], replays)
        return NodeTimes(CUPTI, tuple(traces))
    except CuptiBusy:
        raise
    except CuptiUnavailable as error:
        first = str(error)
    progress("time nodes with PyTorch's profiler")
    try:
        found = times.collect(session)
    except RuntimeError as error:
        raise CuptiUnavailable(f"{first}; PyTorch's profiler: {error}") from error
    if not any(records for replays in found for records in replays):
        raise CuptiBusy(f"{first}; PyTorch's profiler recorded nothing either")
    return NodeTimes(PROFILER, replays=tuple(found), instead_of=first)


def around_ns(replays: int = REPLAYS) -> float | None:
    """What a graph takes beside its nodes, before the first and after the last: device time of a
    graph of one kernel, without a profiler, less the kernel's own. None without cupti-python."""
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


def _timed(graph: Graph, trace: Trace) -> Graph:
    placed = trace.placed(graph.edges)
    nodes = tuple(
        msgspec.structs.replace(node, start_ns=span.start_ns, duration_ns=span.duration_ns)
        if (span := placed.get(node.id)) is not None
        else node
        for node in graph.nodes
    )
    return msgspec.structs.replace(graph, nodes=nodes)


def _with(capture: Capture, caveat: Caveat) -> Capture:
    return msgspec.structs.replace(capture, caveats=(*capture.caveats, caveat))
