"""One replay of every graph as a trace that ui.perfetto.dev and chrome://tracing open.

The format is Chrome's Trace Event JSON. A graph is a process, a track of ``cgtool.analysis.timing.
trace`` a thread in it, a span a complete event (``ph: X``). Edges between threads are flow events
(``s`` and ``f``), which belong to the slice around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from cgtool import __version__
from cgtool.analysis.graph.places import NodeDescriber, Place
from cgtool.analysis.timing.roofline import Utilization
from cgtool.analysis.timing.trace import GraphTrace, Span, Track, trace
from cgtool.model.capture import Capture, Frame, Node
from cgtool.model.sources import Sources
from cgtool.render.text import visible

Arguments = dict[str, Any]


class Event(msgspec.Struct, omit_defaults=True, gc=False):
    """One trace event. ``ts`` and ``dur`` are microseconds, with nanoseconds behind the point."""

    ph: str
    name: str
    pid: int
    tid: int
    ts: float | msgspec.Raw | None = None
    dur: float | msgspec.Raw | None = None
    cat: str | None = None
    id: int | None = None
    bp: str | None = None
    args: Arguments | None = None


class Trace(msgspec.Struct):
    """The file as a whole."""

    traceEvents: list[Event]  # noqa: N815 - the format's own names
    displayTimeUnit: str  # noqa: N815
    otherData: dict[str, str]  # noqa: N815


def render(capture: Capture) -> bytes:
    """The trace of all graphs that have nodes with a start and a duration."""
    writer = _Writer(capture)
    events = [event for graph in trace(capture) for event in writer.graph(graph)]
    other = {
        "cgtool": __version__,
        "entry": visible(capture.entry.spec),
        "device": visible(capture.environment.device),
        "times": "of single replays under a profiler, medians; without one the gaps are shorter",
    }
    return msgspec.json.encode(Trace(events, "ns", other)) + b"\n"


class Slices:
    """Names and arguments of what is around the nodes of one capture, each formatted once."""

    def __init__(self, capture: Capture) -> None:
        self.nodes = NodeDescriber(capture)
        self._places: dict[Place, Arguments] = {}
        self._sources = Sources(capture.sources)
        self._around: dict[tuple[int | None, str, int], tuple[str, Arguments | None]] = {}

    def around(self, span: Span) -> tuple[str, Arguments | None]:
        """Name and arguments of a slice around nodes."""
        key = (span.node.origin, span.kind, span.depth)
        if key not in self._around:
            self._around[key] = self._name(span, self.nodes.places.of(span.node))
        return self._around[key]

    def _name(self, span: Span, place: Place) -> tuple[str, Arguments | None]:
        if span.kind == "module":
            names = (place.module or "").split(".")
            innermost = {"type": visible(place.module_type or "")}
            name = visible(".".join(names[: span.depth]))
            return name, innermost if span.depth == len(names) else None
        if span.kind == "line" and place.line is not None:
            args = {"file": visible(place.line.file)}
            if source := self._sources.line(place.line).strip():
                args["source"] = visible(source)
            return _line(place.line), args
        return visible(place.op or ""), None

    def place(self, place: Place) -> Arguments:
        """Op, module and lines, as arguments of a node."""
        if place not in self._places:
            self._places[place] = _place(place)
        return self._places[place]


class _Writer:
    """The events of one capture."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._slices = Slices(capture)
        self._nodes = self._slices.nodes

    def graph(self, graph: GraphTrace) -> Iterator[Event]:
        """All events of one graph, an outer slice before those inside it."""
        capture, pid = self._capture, graph.graph + 1
        yield metadata("process_name", pid, pid, name=_named(capture.graphs[graph.graph].name))
        yield metadata("process_sort_index", pid, pid, sort_index=pid)
        # Perfetto takes the thread that has the number of its process for the main one, and shows
        # it first.
        tids = [pid + number * len(capture.graphs) for number in range(len(graph.tracks))]
        for number, (tid, track) in enumerate(zip(tids, graph.tracks, strict=True)):
            yield metadata("thread_name", pid, tid, name=self._track_name(track))
            yield metadata("thread_sort_index", pid, tid, sort_index=number)
            for span in track.spans:
                kind: str = span.kind
                args: Arguments | None
                if kind == "node":
                    node = span.node
                    kind, name = visible(node.type), visible(self._nodes.title(node))
                    args = self._arguments(node, graph.used[node.id])
                else:
                    name, args = self._slices.around(span)
                start, duration = span.start_ns / 1000, (span.end_ns - span.start_ns) / 1000
                yield Event("X", name, pid, tid, start, duration, kind, args=args)
        for arrow in graph.arrows:
            key = pid << 32 | arrow.edge
            leaves, enters = arrow.leaves_ns / 1000, arrow.enters_ns / 1000
            source, target = tids[arrow.source_track], tids[arrow.target_track]
            yield Event("s", "waits for", pid, source, leaves, None, "edge", key)
            yield Event("f", "waits for", pid, target, enters, None, "edge", key, "e")

    def _track_name(self, track: Track) -> str:
        stream = track.stream
        name = "no stream" if stream is None else _named(self._capture.streams[stream].name)
        return f"{name}, concurrent ({track.number})" if track.number else name

    def _arguments(self, node: Node, utilization: Utilization) -> Arguments:
        place = self._slices.place(self._nodes.places.of(node))
        args: Arguments = {"node": node.id, "ns": node.duration_ns, **place}
        if node.kernel is not None:
            args["kernel"] = visible(self._nodes.full_kernels[node.kernel.function])
        for field, value in self._nodes.attributes(node):
            args[field.key] = visible(value) if isinstance(value, str) else value
        figures = (
            ("waves", utilization.waves, 3),
            ("bytes moved", utilization.bytes, None),
            ("flops", utilization.flops, None),
            ("of memory roof", utilization.memory, 3),
            ("of compute roof", utilization.compute, 3),
        )
        args |= {name: round(value, digits) for name, value, digits in figures if value is not None}
        return args if utilization.bound is None else {**args, "bound": utilization.bound}


def _place(place: Place) -> Arguments:
    facts = {
        "op": place.op,
        "module": place.module,
        "line": place.frame and _line(place.frame),
        "forward line": place.forward_frame and _line(place.forward_frame),
        "forward op": place.forward_op,
        "autograd node": place.autograd_node,
        "ranges": " / ".join(place.annotations),
    }
    return {name: visible(text) for name, text in facts.items() if text}


def _named(name: str) -> str:
    """Perfetto counts an empty name of a process or a thread as an error of the file."""
    return visible(name) or "(no name)"


def _line(frame: Frame) -> str:
    return visible(f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function}")


def metadata(kind: str, pid: int, tid: int, **args: Any) -> Event:
    """The name or the order of a process or a thread."""
    return Event("M", kind, pid, tid, args=args)
