"""Random sound captures, for properties.

Strategies that are drawn from many times are made once: to make and validate one takes as long as
to draw from it.
"""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from cgtool.model.capture import (
    Allocation,
    Capture,
    Caveat,
    Copy,
    Edge,
    Fill,
    Frame,
    Function,
    Graph,
    KernelLaunch,
    Memory,
    Node,
    Origin,
    Pool,
    Segment,
    Stream,
)
from cgtool.model.measurements import Bench, Samples
from tests.builders import HOSTILE_NAMES, KERNELS, capture

names = st.one_of(
    st.sampled_from([name for name in HOSTILE_NAMES if name.isascii()]),
    st.sampled_from(KERNELS),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
)
"""Anything that JSON can hold."""
sizes = st.integers(0, 1 << 40)
_maybe_name = st.none() | names
_maybe_size = st.none() | sizes
_module = _maybe_name | st.sampled_from(["a", "a.b", "a.b.c", "a.d"])
_annotations = st.lists(names, max_size=2)
_frames = st.lists(st.builds(Frame, names, st.integers(0, 9999), names), max_size=4)
_streams = st.lists(st.builds(Stream, sizes, names), max_size=2)
_functions = st.lists(st.builds(Function, names, sizes), max_size=3)
_caveats = st.lists(st.builds(Caveat, names, names), max_size=2)
_kind = st.sampled_from(["kernel", "memcpy", "memset", "op", "empty", "type_99"])
_phase = st.sampled_from(["forward", "backward", "step"])
_triple = st.tuples(*[st.integers(1, 1 << 20)] * 3)
_two_sizes = st.lists(sizes, max_size=2)
_times = st.lists(st.floats(0, 1e12), max_size=3)
_edge_type = st.sampled_from((0, 0, 1))


@functools.cache
def index(count: int) -> st.SearchStrategy[int | None]:
    """None, or an index into ``count`` things."""
    return st.none() if count == 0 else st.none() | st.integers(0, count - 1)


@functools.cache
def _chains(frames: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, frames - 1), max_size=3)


@functools.cache
def _pairs(count: int) -> st.SearchStrategy[set[tuple[int, int]]]:
    nodes = st.integers(0, count - 1)
    return st.sets(st.tuples(nodes, nodes), max_size=3 * count)


@functools.cache
def _pools(streams: int) -> st.SearchStrategy[list[Pool]]:
    segment = st.builds(Segment, sizes, sizes, index(streams), st.just("small"))
    return st.lists(st.builds(Pool, st.just((0, 1)), names, st.tuples(segment)), max_size=2)


@st.composite
def edges(draw: st.DrawFn, count: int) -> tuple[Edge, ...]:
    """Edges of a graph without cycles whose ids are in a topological order."""
    chosen = draw(_pairs(count)) if count else set()
    return tuple(Edge(a, b, 0, 0, draw(_edge_type)) for a, b in sorted(chosen) if a < b)


@st.composite
def nodes(draw: st.DrawFn, origins: int, streams: int, functions: int) -> tuple[Node, ...]:
    """Nodes of all the common types."""
    drawn: list[Node] = []
    for number in range(draw(st.integers(0, 10))):
        origin, stream = draw(index(origins)), draw(index(streams))
        kind = draw(_kind)
        kernel = copy = fill = None
        if kind == "kernel" and functions:
            kernel = KernelLaunch(
                draw(st.integers(0, functions - 1)), draw(_triple), draw(_triple), draw(sizes)
            )
        elif kind == "memcpy":
            copy = Copy("dtod", draw(sizes), draw(sizes), draw(sizes))
        elif kind == "memset":
            fill = Fill(draw(sizes), draw(st.integers(0, 255)))
        detail = draw(_maybe_name)
        drawn.append(
            Node(number, kind, origin, None, stream, kernel, copy, fill, (), detail=detail)
        )
    return tuple(drawn)


@st.composite
def captures(draw: st.DrawFn) -> Capture:
    """A sound capture of one to three graphs."""
    frames = draw(_frames)
    origins: list[Origin] = []
    for number in range(draw(st.integers(0, 5))):
        chain = draw(_chains(len(frames))) if frames else []
        origins.append(
            Origin(
                draw(_maybe_name),
                draw(_module),
                draw(_maybe_name),
                tuple(chain),
                draw(_maybe_name),
                draw(index(number)),
                tuple(draw(_annotations)),
            )
        )
    streams = draw(_streams)
    functions = draw(_functions)
    graphs: list[Graph] = []
    for _ in range(draw(st.integers(1, 3))):
        graph_nodes = draw(nodes(len(origins), len(streams), len(functions)))
        graphs.append(
            Graph(
                draw(names),
                draw(_phase),
                nodes=graph_nodes,
                edges=draw(edges(len(graph_nodes))),
                launch_ns=tuple(draw(_two_sizes)),
            )
        )
    pools = draw(_pools(len(streams)))
    allocations = [
        Allocation(draw(sizes), 512, 100, pool, 0, 0, draw(_maybe_size))
        for pool in range(len(pools))
    ]
    samples = Samples("eager", "forward", tuple(draw(_times)))
    return capture(
        graphs,
        simulated=draw(st.booleans()),
        frames=tuple(frames),
        origins=tuple(origins),
        functions=tuple(functions),
        streams=tuple(streams),
        memory=Memory(tuple(pools), tuple(allocations)),
        bench=Bench((samples,), seed=7) if draw(st.booleans()) else None,
        caveats=tuple(draw(_caveats)),
    )
