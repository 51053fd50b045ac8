"""Random sound captures, for properties."""

from __future__ import annotations

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


def index(count: int) -> st.SearchStrategy[int | None]:
    """None, or an index into ``count`` things."""
    return st.none() if count == 0 else st.none() | st.integers(0, count - 1)


@st.composite
def edges(draw: st.DrawFn, count: int) -> tuple[Edge, ...]:
    """Edges of a graph without cycles whose ids are in a topological order."""
    pairs = st.tuples(st.integers(0, max(count - 1, 0)), st.integers(0, max(count - 1, 0)))
    chosen = draw(st.sets(pairs, max_size=3 * count)) if count else set()
    return tuple(
        Edge(a, b, 0, 0, draw(st.sampled_from((0, 0, 1)))) for a, b in sorted(chosen) if a < b
    )


@st.composite
def nodes(draw: st.DrawFn, origins: int, streams: int, functions: int) -> tuple[Node, ...]:
    """Nodes of all the common types."""
    drawn: list[Node] = []
    for number in range(draw(st.integers(0, 10))):
        origin, stream = draw(index(origins)), draw(index(streams))
        kind = draw(st.sampled_from(["kernel", "memcpy", "memset", "op", "empty", "type_99"]))
        kernel = copy = fill = None
        if kind == "kernel" and functions:
            triple = st.tuples(*[st.integers(1, 1 << 20)] * 3)
            kernel = KernelLaunch(
                draw(st.integers(0, functions - 1)), draw(triple), draw(triple), draw(sizes)
            )
        elif kind == "memcpy":
            copy = Copy("dtod", draw(sizes), draw(sizes), draw(sizes))
        elif kind == "memset":
            fill = Fill(draw(sizes), draw(st.integers(0, 255)))
        detail = draw(st.none() | names)
        drawn.append(
            Node(number, kind, origin, None, stream, kernel, copy, fill, (), detail=detail)
        )
    return tuple(drawn)


@st.composite
def captures(draw: st.DrawFn) -> Capture:
    """A sound capture of one to three graphs."""
    frames = draw(st.lists(st.builds(Frame, names, st.integers(0, 9999), names), max_size=4))
    origins: list[Origin] = []
    for number in range(draw(st.integers(0, 5))):
        chain = draw(st.lists(st.integers(0, len(frames) - 1), max_size=3)) if frames else []
        origins.append(
            Origin(
                draw(st.none() | names),
                draw(st.none() | names | st.sampled_from(["a", "a.b", "a.b.c", "a.d"])),
                draw(st.none() | names),
                tuple(chain),
                draw(st.none() | names),
                draw(index(number)),
                tuple(draw(st.lists(names, max_size=2))),
            )
        )
    streams = draw(st.lists(st.builds(Stream, sizes, names), max_size=2))
    functions = draw(st.lists(st.builds(Function, names, sizes), max_size=3))
    graphs: list[Graph] = []
    for _ in range(draw(st.integers(1, 3))):
        graph_nodes = draw(nodes(len(origins), len(streams), len(functions)))
        graphs.append(
            Graph(
                draw(names),
                draw(st.sampled_from(["forward", "backward", "step"])),
                nodes=graph_nodes,
                edges=draw(edges(len(graph_nodes))),
                launch_ns=tuple(draw(st.lists(sizes, max_size=2))),
            )
        )
    segment = st.builds(Segment, sizes, sizes, index(len(streams)), st.just("small"))
    pools = draw(st.lists(st.builds(Pool, st.just((0, 1)), names, st.tuples(segment)), max_size=2))
    allocations = [
        Allocation(draw(sizes), 512, 100, pool, 0, 0, draw(st.none() | sizes))
        for pool in range(len(pools))
    ]
    samples = Samples("eager", "forward", tuple(draw(st.lists(st.floats(0, 1e12), max_size=3))))
    return capture(
        graphs,
        simulated=draw(st.booleans()),
        frames=tuple(frames),
        origins=tuple(origins),
        functions=tuple(functions),
        streams=tuple(streams),
        memory=Memory(tuple(pools), tuple(allocations)),
        bench=draw(st.none() | st.just(Bench((samples,), seed=7))),
        caveats=tuple(draw(st.lists(st.builds(Caveat, names, names), max_size=2))),
    )
