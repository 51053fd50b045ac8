"""One replay of every graph as a trace that ui.perfetto.dev and chrome://tracing open.

The format is Chrome's Trace Event JSON. A graph is a process, a stream of the capture a thread in
it; graphs follow each other on one time axis. In a thread complete events (``ph: X``) lie inside
each other: the levels of the module path, the line, the op call, the kernel. Edges between threads
are flow events (``s`` and ``f``). Times are as they were traced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cgtool import __version__
from cgtool.analysis.graph.kernel_names import demangle_all, short_kernels
from cgtool.analysis.graph.places import Place, Places
from cgtool.analysis.timing.roofline import Reach, reaches
from cgtool.model.capture import Capture, Frame, Graph, Node
from cgtool.render.source import source_line
from cgtool.render.text import visible

_BETWEEN_GRAPHS_NS = 1000
_Args = dict[str, Any]


class Event(msgspec.Struct, omit_defaults=True, gc=False):
    """One trace event. ``ts`` and ``dur`` are microseconds, with nanoseconds behind the point."""

    ph: str
    name: str
    pid: int
    tid: int
    ts: float | None = None
    dur: float | None = None
    cat: str | None = None
    id: int | None = None
    bp: str | None = None
    args: _Args | None = None


class Trace(msgspec.Struct):
    """The file as a whole."""

    traceEvents: list[Event]  # noqa: N815 - the format's own names
    displayTimeUnit: str  # noqa: N815
    otherData: dict[str, str]  # noqa: N815


@dataclass(slots=True)
class _Slice:
    """A node on its lane, in nanoseconds of the trace."""

    node: Node
    start: int
    end: int


@dataclass(slots=True)
class _Lane:
    """Slices one after the other."""

    stream: int | None
    number: int
    slices: list[_Slice] = field(default_factory=list)


def render(capture: Capture) -> bytes:
    """The trace of all graphs that have nodes with a start and a duration."""
    writer = _Writer(capture)
    events: list[Event] = []
    begin = 0
    for index, graph in enumerate(capture.graphs):
        if graph.parent is not None:
            continue
        lanes = _lanes(graph, begin)
        if lanes:
            events += writer.graph(index, lanes)
            begin = max(lane.slices[-1].end for lane in lanes) + _BETWEEN_GRAPHS_NS
    other = {
        "cgtool": __version__,
        "entry": visible(capture.entry.spec),
        "device": visible(capture.environment.device),
        "times": "of single replays under a profiler, medians; without one the gaps are shorter",
    }
    return msgspec.json.encode(Trace(events, "ns", other)) + b"\n"


def _lanes(graph: Graph, begin: int) -> list[_Lane]:
    """The timed nodes by stream; what ran beside another node of its stream has a lane beside.

    Starts and ends are medians, each of its own: a node may so seem to begin before the one that it
    waits for has ended. That one is then cut short; its ``args`` hold the time that was measured.
    """
    ordered = {
        (edge.source, edge.target) for edge in graph.edges if edge.type == 0 and edge.from_port == 0
    }
    placed = sorted(
        (node.start_ns, node.id)
        for node in graph.nodes
        if node.start_ns is not None and node.duration_ns is not None
    )
    by_stream: dict[int | None, list[_Lane]] = defaultdict(list)
    for offset, number in placed:
        node = graph.nodes[number]
        start = begin + offset
        made = _Slice(node, start, start + (node.duration_ns or 0))
        lanes = by_stream[node.stream]
        for lane in lanes:
            last = lane.slices[-1]
            if last.end <= start or (last.node.id, number) in ordered:
                last.end = min(last.end, start)
                lane.slices.append(made)
                break
        else:
            lanes.append(_Lane(node.stream, len(lanes), [made]))
    return [lane for lanes in by_stream.values() for lane in lanes]


@dataclass(slots=True)
class _Level:
    """A slice around others."""

    key: Hashable
    """Neighbours with the same one share the slice."""
    kind: str
    name: str
    args: _Args | None = None


class _Writer:
    """Names of one capture as they stand in the trace, each worked out once."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._places = Places(capture)
        names = [one.name for one in capture.functions]
        short, full = short_kernels(names), demangle_all(names)
        self._kernels = [(visible(short[name]), visible(full[name])) for name in names]
        self._paths: dict[int | None, list[_Level]] = {}
        self._arguments: dict[int | None, _Args] = {}

    def graph(self, index: int, lanes: Sequence[_Lane]) -> Iterator[Event]:
        """All events of one graph, an outer slice before those inside it."""
        graph, pid = self._capture.graphs[index], index + 1
        yield _meta("process_name", pid, pid, name=_named(graph.name))
        yield _meta("process_sort_index", pid, pid, sort_index=pid)
        reached = reaches(self._capture, graph)
        at: dict[int, tuple[int, _Slice]] = {}
        for number, lane in enumerate(lanes):
            # Perfetto takes the thread that has the number of its process for the main one, and
            # shows it first.
            tid = pid + number * len(self._capture.graphs)
            yield _meta("thread_name", pid, tid, name=self._lane_name(lane))
            yield _meta("thread_sort_index", pid, tid, sort_index=number)
            yield from self._nested(graph, lane, pid, tid, reached)
            for one in lane.slices:
                at[one.node.id] = (tid, one)
        yield from _flows(graph, pid, at)

    def _lane_name(self, lane: _Lane) -> str:
        stream = lane.stream
        name = "no stream" if stream is None else _named(self._capture.streams[stream].name)
        return f"{name}, beside it ({lane.number})" if lane.number else name

    def _nested(
        self, graph: Graph, lane: _Lane, pid: int, tid: int, reached: Sequence[Reach]
    ) -> Iterator[Event]:
        """Neighbours with the same module, line and op share the slices of those."""
        made: list[Event] = []
        open_keys: list[Hashable] = []
        opened: list[tuple[Event, int]] = []
        end = 0
        for one in lane.slices:
            path = self._path(one.node)
            # Two calls of one op in one line are two slices.
            keys: list[Hashable] = [
                (level.key, one.node.call) if level.kind == "op" else level.key for level in path
            ]
            same = 0
            while same < min(len(keys), len(open_keys)) and keys[same] == open_keys[same]:
                same += 1
            _close(opened, same, end)
            for level in path[same:]:
                at = one.start / 1000
                event = Event("X", level.name, pid, tid, at, None, level.kind, args=level.args)
                opened.append((event, one.start))
                made.append(event)
            open_keys = keys
            made.append(
                Event(
                    "X",
                    self._kernel(one.node),
                    pid,
                    tid,
                    one.start / 1000,
                    (one.end - one.start) / 1000,
                    visible(one.node.type),
                    args=self._args(graph, one.node, reached[one.node.id]),
                )
            )
            end = one.end
        _close(opened, 0, end)
        yield from made

    def _path(self, node: Node) -> list[_Level]:
        """The slices around a node, outermost first."""
        known = self._paths.get(node.origin)
        if known is not None:
            return known
        place = self._places.of(node)
        path: list[_Level] = []
        if place.module:
            names = place.module.split(".")
            for level in range(1, len(names) + 1):
                name = ".".join(names[:level])
                path.append(_Level(name, "module", visible(name)))
            path[-1].args = {"type": visible(place.module_type or "")}
        if place.line is not None:
            args = {"file": visible(place.line.file)}
            if source := source_line(place.line, of_capture=True):
                args["source"] = visible(source)
            path.append(_Level(place.line, "line", _line(place.line), args))
        if place.op is not None:
            path.append(_Level(place.op, "op", visible(place.op)))
        self._paths[node.origin] = path
        return path

    def _kernel(self, node: Node) -> str:
        if node.kernel is not None:
            return self._kernels[node.kernel.function][0]
        return f"memcpy {visible(node.copy.kind)}" if node.copy is not None else visible(node.type)

    def _of_origin(self, node: Node) -> _Args:
        """What all nodes of one origin have in common."""
        known = self._arguments.get(node.origin)
        if known is None:
            place = self._places.of(node)
            known = self._arguments[node.origin] = {
                name: visible(text) for name, text in _told(place) if text
            }
        return known

    def _args(self, graph: Graph, node: Node, reach: Reach) -> _Args:
        args: _Args = {"node": node.id, "ns": node.duration_ns, **self._of_origin(node)}
        launch = node.kernel
        if launch is not None:
            function = self._capture.functions[launch.function]
            args["kernel"] = self._kernels[launch.function][1]
            args["grid"], args["block"] = launch.grid, launch.block
            if function.registers is not None:
                args["registers"] = function.registers
            args["shared bytes"] = (function.static_shared_bytes or 0) + launch.dynamic_shared_bytes
        if reach.waves is not None:
            args["waves"] = round(reach.waves, 3)
        if reach.bytes is not None:
            args["bytes"] = round(reach.bytes)
        if reach.flops is not None:
            args["flops"] = round(reach.flops)
        if reach.memory is not None:
            args["of memory roof"] = round(reach.memory, 3)
        if reach.compute is not None:
            args["of compute roof"] = round(reach.compute, 3)
        if reach.bound is not None:
            args["bound"] = reach.bound
        return args


def _told(place: Place) -> Iterator[tuple[str, str | None]]:
    yield "op", place.op
    yield "module", place.module
    yield "line", _line(place.frame) if place.frame else None
    yield "forward line", _line(place.forward_frame) if place.forward_frame else None
    yield "forward op", place.forward_op
    yield "autograd node", place.autograd_node
    yield "ranges", " / ".join(place.annotations)


def _named(name: str) -> str:
    """Perfetto counts an empty name of a process or a thread as an error of the file."""
    return visible(name) or "(no name)"


def _line(frame: Frame) -> str:
    return visible(f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function}")


def _close(opened: list[tuple[Event, int]], keep: int, end: int) -> None:
    for event, start in opened[keep:]:
        event.dur = (end - start) / 1000
    del opened[keep:]


def _meta(kind: str, pid: int, tid: int, **args: Any) -> Event:
    return Event("M", kind, pid, tid, args=args)


def _flows(graph: Graph, pid: int, at: dict[int, tuple[int, _Slice]]) -> Iterator[Event]:
    """An arrow for each edge from one thread to another, from inside one slice to another's
    start: a flow event belongs to the slice that lies around it."""
    for number, edge in enumerate(graph.edges):
        if edge.source not in at or edge.target not in at:
            continue
        (from_tid, source), (to_tid, target) = at[edge.source], at[edge.target]
        if from_tid == to_tid or target.start < source.start:
            continue
        leaves = max(source.start, min(source.end - 1, target.start))
        name, known = "waits for", pid << 32 | number
        yield Event("s", name, pid, from_tid, leaves / 1000, None, "edge", known)
        yield Event("f", name, pid, to_tid, target.start / 1000, None, "edge", known, "e")
