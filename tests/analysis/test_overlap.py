"""What could overlap, compared with a pairwise test of everything that nodes touch."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgtool.analysis.graph import dependencies, overlap
from cgtool.analysis.graph.schedule import schedule
from cgtool.findings import page
from cgtool.model.capture import (
    Allocation,
    Call,
    Capture,
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
    PointerArgument,
    Pool,
    Stream,
)
from cgtool.model.finding import Finding
from tests import builders

SMS = 132
BLOCKS = 8


def launch(share: float = 0.0, pointers: tuple[int, ...] = (), **fields) -> KernelLaunch:
    """A kernel whose blocks fill this share of the device."""
    blocks = round(share * SMS * BLOCKS)
    return KernelLaunch(
        0, (max(1, blocks), 1, 1), (128, 1, 1), active_blocks=BLOCKS,
        pointers=tuple(PointerArgument(0, 0, 512 * pointer, pointer) for pointer in pointers),
        **fields,
    )  # fmt: skip


def capture(nodes, calls, edges=None, **tables) -> Capture:
    if edges is None:
        edges = builders.chain(len(nodes))
    apart = tuple(Allocation(4096 * at, 512, 500, 0, 0, at) for at in range(10))
    tables = {"memory": Memory((Pool((0, 1), "graphs"),), apart), **tables}
    graph = Graph("forward", "forward", nodes=tuple(nodes), edges=edges, calls=tuple(calls))
    return builders.capture([graph], functions=(Function("k"),), **tables)


def chain(*calls: tuple[tuple[int, ...], tuple[int, ...]], times=None, shares=None) -> Capture:
    """One kernel for each (reads, writes), on one stream, each at a line of its own."""
    count = len(calls)
    nodes = [
        Node(
            at, "kernel", at, at, 0, launch(shares[at] if shares else 0.0),
            duration_ns=times[at] if times else None,
        )
        for at in range(count)
    ]  # fmt: skip
    return capture(
        nodes,
        [Call(*call) for call in calls],
        frames=tuple(Frame("/home/me/model.py", 31 + at, "f") for at in range(count)),
        origins=tuple(Origin("aten::mm", f"layers.{at}", "Linear", (at,)) for at in range(count)),
        streams=(Stream(1, "capture stream"), Stream(2, "side stream")),
    )


def findings(recorded: Capture) -> tuple[Finding, ...]:
    return overlap.overlap_findings(recorded, [overlap.find_overlap(recorded, 0)])


THREE = (((0, 1), (2,)), ((0, 3), (4,)), ((2, 4), (5,)))
"""Two that read one input, and one that reads both results."""


def test_two_branches_on_one_stream():
    overlaps = overlap.find_overlap(chain(*THREE, times=[12_000, 60_000, 8_000]), 0)
    assert (overlaps.length_ns, overlaps.needed_ns, overlaps.gain_ns) == (80_000, 68_000, 12_000)
    assert overlaps.gain == pytest.approx(0.15)
    assert (overlaps.length_nodes, overlaps.needed_nodes) == (3, 2)
    assert overlaps.unneeded_edges == 1
    (pair,) = overlaps.pairs
    assert (pair.one, pair.other, pair.nodes, pair.times) == (0, 1, (0,), 1)
    assert (pair.busy_ns, pair.gain_ns, pair.across) == (12_000, 12_000, False)
    assert overlap.sentence(chain(*THREE), overlaps, pair) == (
        "aten::mm at model.py:31 (layers.0) and aten::mm at model.py:32 (layers.1) are "
        "independent: running them at the same time would gain at most 12.0 us of 80.0 us"
    )


def test_without_times_it_counts_nodes():
    recorded = chain(*THREE)
    overlaps = overlap.find_overlap(recorded, 0)
    assert (overlaps.timed, overlaps.gain_ns, overlaps.gain) == (False, 0, 0.0)
    assert "at most 1 of 3 nodes" in overlap.sentence(recorded, overlaps, overlaps.pairs[0])
    assert findings(recorded) == ()


@pytest.mark.parametrize(
    ("shares", "gain"),
    [((0.0, 0.0, 0.0), 12_000), ((0.5, 0.5, 0.0), 12_000), ((1, 1, 1), 0), ((1, 0.9, 1), 6_000)],
)
def test_a_device_that_is_full_gains_nothing(shares, gain):
    overlaps = overlap.find_overlap(chain(*THREE, times=[12_000, 60_000, 8_000], shares=shares), 0)
    assert overlaps.gain_ns == pytest.approx(gain, abs=100)
    assert sum(pair.gain_ns for pair in overlaps.pairs) == pytest.approx(gain, abs=100)


@pytest.mark.parametrize(
    "calls",
    [
        (((0,), (1,)), ((1,), (2,))),
        (((0,), (1,)), ((2,), (0,))),
        (((0,), (2,)), ((1,), (2,))),
        (((0,), (0,)), ((0,), (0,))),
    ],
    ids=["read after write", "write after read", "write after write", "in place"],
)
def test_what_must_stay_in_order(calls):
    overlaps = overlap.find_overlap(chain(*calls, times=[10, 10]), 0)
    assert (overlaps.gain_ns, overlaps.pairs, overlaps.unneeded_edges) == (0, (), 0)


def test_branches_that_already_overlap_are_not_pairs():
    recorded = chain(*THREE, times=[12, 60, 8])
    forked = tuple(
        msgspec.structs.replace(node, stream=int(node.id == 0)) for node in recorded.graphs[0].nodes
    )
    graph = msgspec.structs.replace(
        recorded.graphs[0], nodes=forked, edges=(Edge(0, 2), Edge(1, 2))
    )
    overlaps = overlap.find_overlap(msgspec.structs.replace(recorded, graphs=(graph,)), 0)
    assert (overlaps.gain_ns, overlaps.pairs, overlaps.unneeded_edges) == (0, (), 0)


def test_a_wait_between_streams_is_named():
    recorded = chain(*THREE, times=[12_000, 60_000, 8_000])
    nodes = tuple(
        msgspec.structs.replace(node, stream=int(node.id == 0)) for node in recorded.graphs[0].nodes
    )
    graph = msgspec.structs.replace(recorded.graphs[0], nodes=nodes)
    (finding,) = findings(msgspec.structs.replace(recorded, graphs=(graph,)))
    assert "ordered by waits between streams" in finding.reason
    assert finding.fix is None


def test_the_finding():
    (finding,) = findings(chain(*THREE, times=[12_000, 60_000, 8_000]))
    assert page(finding.code) is not None
    assert "at most 12.0 us of 80.0 us (15%)" in finding.reason
    assert "captured on one stream" in finding.reason
    assert [frame.line for frame in finding.frames] == [31]
    assert finding.module == "layers.0"
    assert any("model.py:31" in line and "model.py:32" in line for line in finding.evidence)
    (finding,) = findings(chain(*THREE, times=[12_000_000, 60_000_000, 8_000_000]))
    assert "at most 12.0 ms of 80.0 ms (15%)" in finding.reason
    assert finding.evidence[0].startswith("critical path 80.0 ms;")


def test_a_small_gain_is_not_a_finding():
    assert findings(chain(*THREE, times=[7_900, 64_100, 8_000])) == ()
    assert findings(chain(*THREE, times=[8_100, 63_900, 8_000])) != ()


def test_layers_that_repeat_are_one_pair():
    calls, times = [], []
    for layer in range(3):
        base = 10 * layer
        calls += [
            ((base,), (base + 1,)),
            ((base,), (base + 2,)),
            ((base + 1, base + 2), (base + 10,)),
        ]
        times += [10, 30, 10]
    recorded = chain(*calls, times=times)
    nodes = tuple(
        msgspec.structs.replace(node, origin=node.id % 3) for node in recorded.graphs[0].nodes
    )
    graph = msgspec.structs.replace(recorded.graphs[0], nodes=nodes)
    overlaps = overlap.find_overlap(msgspec.structs.replace(recorded, graphs=(graph,)), 0)
    (pair,) = overlaps.pairs
    assert (pair.times, pair.nodes, pair.gain_ns) == (3, (0, 3, 6), 30)


def kernel(at, call=None, pointers=(), unread=None):
    kernel_launch = launch(0.0, pointers, arguments_unread=unread)
    return Node(at, "kernel", call=call, stream=0, kernel=kernel_launch)


def before(nodes, calls):
    return [
        list(sources) for sources in dependencies.find_dependencies(capture(nodes, calls), 0).before
    ]


A, B = Call((0,), (1,)), Call((0,), (2,))


BY_HAND = {
    "two calls that read the same": ([kernel(0, 0), kernel(1, 1)], [A, B], [[], []]),
    "nodes of one call": (
        [kernel(0, 0), kernel(1, 0), kernel(2, 1)],
        [A, B],
        [[], [0], []],
    ),
    "Triton kernels by their pointers": (
        [kernel(0, None, (1,)), kernel(1, None, (2,)), kernel(2, None, (1, 2))],
        [],
        [[], [], [0, 1]],
    ),
    "a Triton kernel and an op call with a pointer to the same memory": (
        [kernel(0, 0, (5, 6)), kernel(1, 1, (5, 7)), kernel(2, None, (6,))],
        [A, B],
        [[], [], [0]],
    ),
    "an op call with fewer pointers than storages might touch anything": (
        [kernel(0, 0, (5,)), kernel(1, 1, (5, 7)), kernel(2, None, (9,))],
        [A, B],
        [[], [], [0]],
    ),
    "no pointers": ([kernel(0, 0), kernel(1), kernel(2, 1)], [A, B], [[], [0], [1]]),
    "arguments that could not be read": (
        [kernel(0, 0), kernel(1, None, (3,), unread="why"), kernel(2, 1)],
        [A, B],
        [[], [0], [1]],
    ),
    "a host node, though a call owns it": (
        [kernel(0, 0), Node(1, "host", call=1), kernel(2, 1)],
        [A, B],
        [[], [0], [1]],
    ),
    "a call that says nothing of what it wrote": (
        [kernel(0, 0), kernel(1, 1), kernel(2, 2)],
        [A, Call((0,)), B],
        [[], [0], [1]],
    ),
    "an empty node does nothing": (
        [kernel(0, 0), Node(1, "empty"), kernel(2, 1)],
        [A, B],
        [[], [], []],
    ),
    "all between two barriers": (
        [Node(0, "host"), kernel(1, 0), kernel(2, 1), Node(3, "host")],
        [A, B],
        [[], [0], [0], [1, 2]],
    ),
}


@pytest.mark.parametrize(("nodes", "calls", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_dependencies_by_hand(nodes, calls, expected):
    assert before(nodes, calls) == expected


def test_copies_and_fills_say_where_they_write():
    fill = Node(0, "memset", fill=Fill(64, 0, destination_allocation=1))
    other = Node(1, "memset", fill=Fill(64, 0, destination_tensor=1))
    copy = Node(2, "memcpy", copy=Copy("dtod", 64, source_tensor=1, destination_allocation=3))
    up = Node(3, "memcpy", copy=Copy("htod", 64, source=99, destination_allocation=1))
    lost = Node(4, "memset", fill=Fill(64, 0))
    assert before([fill, other, copy, up, lost], []) == [[], [], [1], [0], [2, 3]]


def test_an_old_capture_says_that_it_knows_little():
    recorded = capture([kernel(0, 0, (1,)), kernel(1, 1, (2,))], [])
    overlaps = overlap.find_overlap(recorded, 0)
    assert (overlaps.recorded, overlaps.guessed, overlaps.barriers) == (False, 2, 0)


TYPES = st.sampled_from(("call", "call", "call", "same", "guessed", "barrier", "empty"))
ALLOCATIONS = st.lists(st.integers(0, 3), max_size=2, unique=True).map(tuple)
WRITES = st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True).map(tuple)


@st.composite
def mixed(draw) -> Capture:
    """Nodes of all kinds in a chain. The nodes of one call hold the same pointers."""
    nodes: list[Node] = []
    calls: list[Call] = []
    held: list[tuple[int, ...]] = []
    for at in range(draw(st.integers(0, 9))):
        kind = draw(TYPES)
        if kind == "same" and not calls:
            kind = "call"
        duration = draw(st.integers(0, 9))
        if kind == "call":
            writes = draw(WRITES)
            calls.append(Call(draw(ALLOCATIONS), writes))
            held.append(draw(ALLOCATIONS))
        if kind in ("call", "same"):
            number = len(calls) - 1 if kind == "call" else draw(st.integers(0, len(calls) - 1))
            node = kernel(at, number, held[number])
        elif kind == "guessed":
            node = kernel(at, None, draw(ALLOCATIONS))
        else:
            node = Node(at, "host" if kind == "barrier" else "empty")
        nodes.append(msgspec.structs.replace(node, duration_ns=duration))
    return capture(nodes, calls)


def conflicts(recorded: Capture) -> set[tuple[int, int]]:
    """Pairs of nodes that must stay in order, by comparing each with each."""
    graph = recorded.graphs[0]
    guessed = [node for node in graph.nodes if node.call is None and node.kernel is not None]

    def places(node: Node) -> set[int]:
        return {pointer.allocation for pointer in node.kernel.pointers}

    def barrier(node: Node) -> bool:
        return node.type == "host" or (node in guessed and not places(node))

    def meet(node: Node, other: Node) -> bool:
        if "empty" in (node.type, other.type):
            return False
        if barrier(node) or barrier(other):
            return True
        if node.call is not None and other.call is not None:
            a, b = graph.calls[node.call], graph.calls[other.call]
            touched = set(b.reads) | set(b.writes)
            clash = set(a.writes) & touched or set(a.reads) & set(b.writes)
            return node.call == other.call or bool(clash)
        known = next((node for node in (node, other) if node.call is not None), None)
        if known is not None:
            call = graph.calls[known.call]
            if len(places(known)) < len({*call.reads, *call.writes}):
                return True
        return bool(places(node) & places(other))

    return {
        (node.id, other.id) for node, other in combinations(graph.nodes, 2) if meet(node, other)
    }


def closed(count: int, pairs: set[tuple[int, int]]) -> set[tuple[int, int]]:
    closure = set(pairs)
    for middle in range(count):
        for index in range(count):
            for other in range(count):
                if (index, middle) in closure and (middle, other) in closure:
                    closure.add((index, other))
    return closure


@given(mixed())
@settings(max_examples=400)
def test_dependencies_are_those_of_all_pairs(recorded):
    needed = dependencies.find_dependencies(recorded, 0)
    count = len(recorded.graphs[0].nodes)
    pairs = {(source, node) for node in range(count) for source in needed.before[node]}
    unseen = any(
        node.call is not None
        and len({pointer.allocation for pointer in node.kernel.pointers})
        < len(
            {
                *recorded.graphs[0].calls[node.call].reads,
                *recorded.graphs[0].calls[node.call].writes,
            }
        )
        for node in recorded.graphs[0].nodes
    )
    expected, got = closed(count, conflicts(recorded)), closed(count, pairs)
    # With calls that might touch anything, what is guessed keeps its order among itself too.
    assert got >= expected if unseen else got == expected


@given(mixed())
@settings(max_examples=400)
def test_pairs_need_nothing_of_each_other(recorded):
    overlaps = overlap.find_overlap(recorded, 0)
    nodes = recorded.graphs[0].nodes
    needs = closed(len(nodes), conflicts(recorded))
    assert overlaps.needed_ns <= overlaps.length_ns == sum(node.duration_ns or 0 for node in nodes)
    assert overlaps.bound_ns + overlaps.gain_ns == overlaps.length_ns
    for pair in overlaps.pairs:
        assert (pair.one, pair.other) not in needs
        assert (pair.other, pair.one) not in needs
        assert pair.gain_ns <= overlaps.gain_ns
        assert pair.busy_ns == sum(nodes[node].duration_ns for node in pair.nodes)
    # All gain comes from somewhere: the pieces cover it.
    assert sum(pair.busy_ns for pair in overlaps.pairs) >= overlaps.gain_ns


@given(mixed())
def test_edges_that_are_not_needed_are_between_independent_nodes(recorded):
    needs = closed(len(recorded.graphs[0].nodes), conflicts(recorded))
    free = [edge for edge in recorded.graphs[0].edges if (edge.source, edge.target) not in needs]
    assert overlap.find_overlap(recorded, 0).unneeded_edges <= len(free)


def test_reused_memory_must_wait_or_be_more():
    # 0 and 2 use the same memory one after the other, and need nothing of each other.
    nodes = [kernel(0, 0, (0,)), kernel(1, 1, (1,)), kernel(2, 2, (2,)), kernel(3, 3, (3,))]
    nodes = [msgspec.structs.replace(node, duration_ns=10) for node in nodes]
    calls = [Call((9,), (0,)), Call((0,), (1,)), Call((9,), (2,)), Call((1, 2), (3,))]

    def with_addresses(addresses):
        allocations = tuple(
            Allocation(address, 1024, 1000, 0, 0, 2 * at, 2 * at + 1)
            for at, address in enumerate(addresses)
        )
        return capture(nodes, calls, memory=Memory((Pool((0, 1), "p"),), allocations))

    assert overlap.find_overlap(with_addresses([0, 4096, 0, 8192]), 0).more_bytes == 1024
    assert overlap.find_overlap(with_addresses([0, 4096, 512, 8192]), 0).more_bytes == 512
    assert overlap.find_overlap(with_addresses([0, 4096, 16384, 8192]), 0).more_bytes == 0
    # What waits for the first use anyway needs no more.
    assert overlap.find_overlap(with_addresses([0, 4096, 16384, 0]), 0).more_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), max_size=8))
def test_reused_bytes_are_those_of_each_earlier_owner(blocks):
    # Nodes that need nothing of each other: every byte that had an owner is counted.
    allocations = tuple(
        Allocation(start, size, size, 0, 0, at) for at, (start, size) in enumerate(blocks)
    )
    nodes = [
        msgspec.structs.replace(kernel(at, at, (at,)), duration_ns=1) for at in range(len(blocks))
    ]
    recorded = capture(
        nodes,
        [Call((), (at,)) for at in range(len(blocks))],
        memory=Memory((Pool((0, 1), "p"),), allocations),
    )
    owned: set[int] = set()
    expected = 0
    for start, size in blocks:
        expected += len(owned & set(range(start, start + size)))
        owned |= set(range(start, start + size))
    free = schedule(range(len(nodes)), [1] * len(nodes), [()] * len(nodes))
    assert overlap.more_bytes(recorded, recorded.graphs[0], free) == expected


def test_a_graph_of_many_nodes():
    overlaps = overlap.find_overlap(builders.huge(20_000), 0)
    assert overlaps.guessed + overlaps.barriers == 10_000


def test_an_empty_graph():
    overlaps = overlap.find_overlap(capture([], []), 0)
    assert (overlaps.gain, overlaps.pairs) == (0.0, ())
