"""One replay of every graph on one time axis: what a trace viewer shows.

A graph has tracks, one a stream of the capture or more; a track has spans that lie inside each
other: the levels of the module path, the line, the op call, the node. Graphs follow each other.
Times are nanoseconds, as they were traced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from cgtool.analysis.graph.places import Place, Places
from cgtool.analysis.timing.roofline import Utilization, utilizations
from cgtool.model.capture import Capture, Graph, Node

BETWEEN_GRAPHS_NS = 1000
SpanKind = Literal["module", "line", "op", "node"]
Level = tuple[SpanKind, int, Hashable]
"""A span around nodes: kind, depth, and a key that neighbors share."""


class Span(msgspec.Struct, gc=False):
    """An interval of a track."""

    kind: SpanKind
    node: Node
    """Itself, or the first one in the module, line or op."""
    start_ns: int
    end_ns: int
    depth: int = 0
    """For a module: how many names of the node's module path it has, from 1."""


class Arrow(NamedTuple):
    """An edge from one track to another."""

    edge: int
    source_track: int
    leaves_ns: int
    """A time inside the source's span."""
    target_track: int
    enters_ns: int


@dataclass(slots=True)
class Track:
    """Nodes one after the other, with what is around them."""

    stream: int | None
    """Index into ``Capture.streams``."""
    number: int
    """Number among the tracks of this stream; above 0: nodes that overlap others of the stream."""
    nodes: list[Span] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """Nodes too; an outer span comes before those inside it."""


@dataclass(frozen=True, slots=True)
class GraphTrace:
    """One replay of one graph."""

    graph: int
    """Index into ``Capture.graphs``."""
    tracks: Sequence[Track]
    arrows: Sequence[Arrow]
    used: Sequence[Utilization]
    """By node id."""


def trace(capture: Capture) -> Iterator[GraphTrace]:
    """All graphs that have nodes with a start and a duration, in order."""
    levels = levels_of(capture)
    begin = 0
    for index, graph in enumerate(capture.graphs):
        if graph.parent is not None:
            continue
        tracks = nested_tracks(graph, _spans(graph, begin), levels)
        if not tracks:
            continue
        yield GraphTrace(index, tracks, _arrows(graph, tracks), utilizations(capture, graph))
        begin = max(track.nodes[-1].end_ns for track in tracks) + BETWEEN_GRAPHS_NS


def levels_of(capture: Capture) -> Mapping[int | None, Sequence[Level]]:
    """By origin: what is around its nodes, outermost first."""
    places = Places(capture)
    return {
        origin: list(_levels(places.of_origin(origin)))
        for origin in (None, *range(len(capture.origins)))
    }


def _spans(graph: Graph, begin: int) -> list[Span]:
    """The timed nodes in order of their start."""
    placed = sorted(
        (begin + node.start_ns, node.id, node.duration_ns)
        for node in graph.nodes
        if node.start_ns is not None and node.duration_ns is not None
    )
    return [
        Span("node", graph.nodes[number], start, start + duration)
        for start, number, duration in placed
    ]


def nested_tracks(
    graph: Graph, nodes: Iterable[Span], levels: Mapping[int | None, Sequence[Level]]
) -> list[Track]:
    """Nodes in order of their start, by stream, with what is around them; nodes that overlap others
    of their stream get their own track.

    A node may seem to begin before the one that it waits for has ended: starts and ends are
    medians, each by itself, and clocks jitter. That one is then cut short; ``Node.duration_ns``
    stays as it was measured.
    """
    ordered = {
        (edge.source, edge.target) for edge in graph.edges if edge.type == 0 and edge.from_port == 0
    }
    by_stream: dict[int | None, list[Track]] = defaultdict(list)
    for span in nodes:
        tracks = by_stream[span.node.stream]
        for track in tracks:
            last = track.nodes[-1]
            if last.end_ns <= span.start_ns or (last.node.id, span.node.id) in ordered:
                last.end_ns = min(last.end_ns, span.start_ns)
                track.nodes.append(span)
                break
        else:
            tracks.append(Track(span.node.stream, len(tracks), [span]))
    placed = [track for tracks in by_stream.values() for track in tracks]
    for track in placed:
        track.spans = _nested(track.nodes, levels)
    return placed


def _levels(place: Place) -> Iterator[Level]:
    """Outermost first."""
    if place.module:
        names = place.module.split(".")
        for depth in range(1, len(names) + 1):
            yield "module", depth, ".".join(names[:depth])
    if place.line is not None:
        yield "line", 0, place.line
    if place.op is not None:
        yield "op", 0, place.op


def _nested(nodes: Sequence[Span], levels: Mapping[int | None, Sequence[Level]]) -> list[Span]:
    """Neighbors with the same module, line and op share the spans of those."""
    spans: list[Span] = []
    opened: list[tuple[Hashable, Span]] = []
    end = 0
    before: tuple[int | None, int | None] | None = None
    for span in nodes:
        node = span.node
        # Of neighbors of one op call, nothing around them ends or begins.
        if (node.origin, node.call) != before:
            before = (node.origin, node.call)
            around = levels[node.origin]
            # Two calls of one op in one line are two spans.
            keys = [(key, node.call) if kind == "op" else key for kind, _, key in around]
            same = 0
            while same < min(len(keys), len(opened)) and keys[same] == opened[same][0]:
                same += 1
            for _, closed in opened[same:]:
                closed.end_ns = end
            del opened[same:]
            for (kind, depth, _), key in zip(around[same:], keys[same:], strict=True):
                outer = Span(kind, node, span.start_ns, span.end_ns, depth)
                opened.append((key, outer))
                spans.append(outer)
        spans.append(span)
        end = span.end_ns
    for _, closed in opened:
        closed.end_ns = end
    return spans


def _arrows(graph: Graph, tracks: Sequence[Track]) -> list[Arrow]:
    at = {
        span.node.id: (number, span) for number, track in enumerate(tracks) for span in track.nodes
    }
    arrows = []
    for number, edge in enumerate(graph.edges):
        if edge.source not in at or edge.target not in at:
            continue
        (from_track, source), (to_track, target) = at[edge.source], at[edge.target]
        if from_track == to_track or target.start_ns < source.start_ns:
            continue
        leaves = max(source.start_ns, min(source.end_ns - 1, target.start_ns))
        arrows.append(Arrow(number, from_track, leaves, to_track, target.start_ns))
    return arrows
