"""What changed between two captures: what a diff reports and what it ignores."""

from __future__ import annotations

import random
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cgtool.analysis.diff.compare import compare
from cgtool.analysis.graph.kernel_names import same_in_every_build
from cgtool.analysis.timing import gaps
from cgtool.model.capture import (
    Block,
    Capture,
    Caveat,
    Copy,
    Edge,
    Entry,
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
from cgtool.model.capture_file import read
from cgtool.model.failure import CgtoolError
from cgtool.model.measurements import GraphTimes, Profile
from cgtool.model.validation import inconsistency
from tests.builders import capture, chain, huge, nested, small, unusual
from tests.strategies import captures

CAPTURES = sorted((Path(__file__).parent.parent.parent / "samples" / "captures").glob("*.cgt"))
ADD, MUL, GEMM, OTHER_GEMM = range(4)
FUNCTIONS = tuple(Function(name) for name in ("add", "mul", "gemm_128", "gemm_64"))


class Builder:
    """A capture of one graph, written down node by node."""

    def __init__(self, *, folder="/home/me", shift=0):
        self.frames, self.origins, self.nodes, self.edges = [], [], [], None
        self.folder, self.shift = folder, shift

    def node(
        self, op, module, line, kernel=ADD, grid=1, stream=0, function="Model.forward", **more
    ):
        """A kernel; waits for the one before unless ``edges`` says otherwise."""
        at = len(self.nodes)
        self.frames.append(Frame(f"{self.folder}/model.py", line + self.shift, "Model.forward"))
        self.origins.append(Origin(f"aten::{op}", module, "Module", (at,)))
        launch = KernelLaunch(kernel, (grid, 1, 1), (128, 1, 1))
        if "type" not in more:
            more |= {"type": "kernel", "kernel": launch}
        self.nodes.append(Node(at, origin=at, call=at, stream=stream, **more))
        return self

    def capture(self, *edges, phase="forward", **fields):
        pairs = tuple(Edge(*edge) for edge in edges) if edges else chain(len(self.nodes))
        graph = Graph(phase, phase, nodes=tuple(self.nodes), edges=pairs)
        recorded = capture(
            [graph],
            frames=tuple(self.frames),
            origins=tuple(self.origins),
            functions=FUNCTIONS,
            streams=fields.pop("streams", (Stream(1, "capture stream"), Stream(2, "side"))),
            **fields,
        )
        assert inconsistency(recorded) is None
        return recorded


def block(builder=None, *, adds=(12, 15), layers=3, kernel=GEMM, **more):
    """Layers of norm, gemm, and residual adds at the given lines."""
    builder = builder or Builder(**more)
    for layer in range(layers):
        builder.node("mul", f"layers.{layer}.norm", 11, MUL)
        builder.node("addmm", f"layers.{layer}.linear", 11, kernel, 16)
        for line in adds:
            builder.node("add", f"layers.{layer}", line)
    return builder


def counts(report):
    """Removed, added, changed, moved."""
    (row,) = report.graphs
    return row.removed, row.added, row.changed, row.moved


def nothing(a, b):
    report = compare(a, b)
    assert not report.different, report.summary
    assert report.summary.startswith("No difference")
    assert not report.changes
    assert not report.edges
    assert not report.modules
    return report


# What is ignored


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_a_recorded_capture_against_itself(path):
    nothing(read(path), read(path))


@pytest.mark.parametrize(
    ("a", "b"),
    [("mlp", "mlp-bench")]
    + [(name, f"profile-{name}") for name in ("transformer", "two_streams", "train_step")],
)
def test_the_same_workload_captured_twice_on_a_gpu(a, b):
    folder = CAPTURES[0].parent
    nothing(read(folder / f"{a}.cgt"), read(folder / f"{b}.cgt"))


@given(captures())
def test_any_capture_against_itself(recorded):
    nothing(recorded, recorded)


@pytest.mark.parametrize("recorded", [small(), nested(), unusual(), huge(400)])
def test_what_differs_from_process_to_process_is_not_a_difference(recorded):
    draw = random.Random(5)
    order = draw.sample(range(len(recorded.functions)), len(recorded.functions))

    def again(node):
        kernel, copy, fill = node.kernel, node.copy, node.fill
        if kernel is not None:
            pointers = tuple(
                replace(pointer, address=draw.randrange(1 << 47)) for pointer in kernel.pointers
            )
            kernel = replace(kernel, pointers=pointers, active_blocks=None)
        if copy is not None:
            copy = replace(copy, source=draw.randrange(1 << 47), destination=7)
        if fill is not None:
            fill = replace(fill, destination=draw.randrange(1 << 47))
        detail = node.detail and f"{node.detail} at 0x{draw.randrange(1 << 47):x}"
        return replace(
            node, kernel=kernel, copy=copy, fill=fill, detail=detail, duration_ns=7, start_ns=8
        )

    graphs = tuple(
        replace(
            graph,
            nodes=tuple(map(again, graph.nodes)),
            edges=tuple(draw.sample(graph.edges, len(graph.edges))),
            capture_ns=1,
            instantiate_ns=2,
            launch_ns=(3,),
            exec_bytes=draw.randrange(1 << 30),
            raw_dot=None,
        )
        for graph in recorded.graphs
    )
    order = draw.sample(range(len(recorded.functions)), len(recorded.functions))
    graphs = tuple(
        replace(
            graph,
            nodes=tuple(
                replace(
                    node, kernel=replace(node.kernel, function=order.index(node.kernel.function))
                )
                if node.kernel
                else node
                for node in graph.nodes
            ),
        )
        for graph in graphs
    )
    memory = replace(
        recorded.memory,
        pools=tuple(replace(pool, id=(9, 9)) for pool in recorded.memory.pools),
        allocations=tuple(
            replace(allocation, address=0) for allocation in recorded.memory.allocations
        ),
    )
    again = replace(
        recorded,
        graphs=graphs,
        functions=tuple(recorded.functions[at] for at in order),
        frames=tuple(replace(frame, file=f"/elsewhere{frame.file}") for frame in recorded.frames),
        streams=tuple(replace(stream, handle=stream.handle + 99) for stream in recorded.streams),
        memory=memory,
        created="2030-01-01T00:00:00+00:00",
        cgtool="9",
        warmup_ns=1,
    )
    assert inconsistency(again) is None
    nothing(recorded, again)


def test_a_comment_above_and_another_folder_are_not_a_difference():
    nothing(block().capture(), block(folder="/checkout/src", shift=17).capture())


def test_names_generated_by_another_build_are_not_a_difference():
    name = "_ZN2at6native{}_GLOBAL__N__{}_7_Loss_cu_{}3sumIfEEvPT_"
    first = name.format(39, "5cd812b1", "5b0651e1")
    second = name.format(39, "aaaaaaaa", "bbbbbbbb")
    assert first != second
    assert same_in_every_build(first) == same_in_every_build(second)
    assert same_in_every_build(first) != same_in_every_build(first.replace("3sum", "3max"))
    assert same_in_every_build("9" * 5000 + "_GLOBAL__N_") == "12_GLOBAL__N_1"
    recorded = block().capture()
    a, b = (
        replace(recorded, functions=(*FUNCTIONS[:3], Function(text))) for text in (first, second)
    )
    nothing(a, b)


def test_another_order_of_creation_with_the_same_dependencies_is_not_a_difference():
    edges = ((0, 1), (2, 3))
    before = Builder().node("mul", "a", 1).node("add", "a", 2).node("mul", "b", 3, stream=1)
    before = before.node("add", "b", 4, stream=1).capture(*edges)
    after = (
        Builder().node("mul", "b", 3, stream=1).node("add", "b", 4, stream=1).node("mul", "a", 1)
    )
    after = after.node("add", "a", 2).capture(*edges)
    report = nothing(before, after)
    assert any("created in another order" in note for note in report.notes)


def test_a_stream_with_another_number_is_not_a_difference():
    streams = tuple(Stream(at, f"stream {at}") for at in range(3))

    def on_stream(side):
        nodes = Builder().node("mul", "a", 1)
        for line in range(2, 9):
            nodes.node("add", "a", line, stream=side)
        return nodes.capture(streams=streams)

    nothing(on_stream(1), on_stream(2))


# What is reported


@pytest.mark.parametrize("drop", [12, 15])
def test_of_two_equal_nodes_the_one_whose_line_is_gone(drop):
    """Nothing but their lines tells them apart."""
    kept = {12: 15, 15: 12}[drop]
    report = compare(block().capture(), block(adds=(kept,), shift=3).capture())
    assert counts(report) == (3, 0, 0, 0)
    assert [row.line for row in report.changes] == [f"model.py:{drop}"]
    assert report.changes[0].module == "layers.*"
    assert report.summary == f"B has 3 fewer nodes: 3 kernels of add at model.py:{drop} are gone"
    back = compare(block(adds=(kept,), shift=3).capture(), block().capture())
    assert [row.line for row in back.changes] == [f"model.py:{drop}"]


def test_of_two_equal_nodes_the_one_that_has_another_form_is_changed():
    """The launch that changed is the first of two that were equal."""
    before = (
        Builder().node("mul", "a", 1, MUL).node("mm", "a", 2, GEMM, 8).node("mm", "a", 2, GEMM, 8)
    )
    after = Builder().node("mul", "a", 1, MUL, 9).node("mm", "a", 2, GEMM, 9)
    after = after.node("mm", "a", 2, GEMM, 8)
    for a, b in ((before, after), (after, before)):
        report = compare(a.capture(), b.capture())
        assert counts(report) == (0, 0, 2, 0)
        assert (
            [row.a for row in report.changes] == [row.b for row in report.changes] == [(0,), (1,)]
        )


def test_a_kernel_that_changed():
    other = block().capture()
    graph = other.graphs[0]
    nodes = [
        replace(node, kernel=replace(node.kernel, function=OTHER_GEMM, grid=(8, 1, 1)))
        if node.id == 5
        else node
        for node in graph.nodes
    ]
    report = compare(
        block().capture(), replace(other, graphs=(replace(graph, nodes=tuple(nodes)),))
    )
    assert report.different
    assert counts(report) == (0, 0, 1, 0)
    (row,) = report.changes
    assert [(attribute.name, attribute.a, attribute.b) for attribute in row.attributes] == [
        ("kernel", "gemm_128", "gemm_64"),
        ("grid", "16", "8"),
    ]
    assert (row.a, row.b) == ((5,), (5,))
    summary = "Same number of nodes: addmm at model.py:11 in layers.1.linear changed its kernel"
    assert report.summary == summary
    assert [(row.module, row.changed) for row in report.modules] == [("layers.1.linear", 1)]


def test_a_module_that_is_gone_is_reported():
    report = compare(block(layers=12).capture(), block(layers=10).capture())
    summary = "B has 8 fewer nodes: modules layers.10 and 1 other are gone (8 nodes)"
    assert report.summary == summary
    report = compare(block(layers=2).capture(), block(layers=3).capture())
    assert report.summary == "B has 4 more nodes: module layers.2 is new (4 nodes)"


def test_modules_with_names_of_thousands_of_digits_or_names():
    odd = Builder()
    for module in ("9" * 5000, "b" + ".c" * 5000):
        odd.node("mul", module, 1).node("add", module, 2)
    report = compare(block().capture(), block(odd).capture())
    assert counts(report) == (0, 4, 0, 0)
    assert report.summary.endswith(" and 1 other are new (4 nodes)")


def test_an_op_that_took_the_place_of_another():
    before = Builder().node("gelu", "mlp.0", 1, ADD).node("gelu", "mlp.1", 1, ADD)
    after = Builder().node("relu", "mlp.0", 1, MUL).node("relu", "mlp.1", 1, MUL)
    report = compare(before.capture(), after.capture())
    assert counts(report) == (2, 2, 0, 0)
    assert report.summary == "Same number of nodes: gelu at model.py:1 became relu in 2 places"
    after = Builder().node("gelu.out", "mlp.0", 1, MUL).node("gelu.out", "mlp.1", 1, MUL)
    report = compare(before.capture(), after.capture())
    assert (
        report.summary
        == "Same number of nodes: gelu at model.py:1 became aten::gelu.out in 2 places"
    )


def test_many_changes_are_counted_together():
    def with_grid(grid):
        nodes = Builder()
        for line in range(5):
            nodes.node(f"op{line}", "a", line, grid=grid)
        return nodes.capture()

    summary = "Same number of nodes: 5 kernels of 5 ops changed their launch"
    assert compare(with_grid(1), with_grid(2)).summary == summary


def test_another_module_for_the_same_work_is_a_note_not_a_difference():
    recorded = block().capture()
    renamed = tuple(
        replace(origin, module=origin.module.replace("layers", "blocks"))
        for origin in recorded.origins
    )
    report = compare(recorded, replace(recorded, origins=renamed))
    assert not report.different
    (note,) = report.notes
    assert note == (
        "12 nodes do the same work from another module: layers.0 is now blocks.0 and 8 more"
    )


def test_another_op_for_the_same_kernel():
    before, after = Builder().node("add", "a", 1), Builder().node("add_", "a", 1)
    report = compare(before.capture(), after.capture())
    assert counts(report) == (0, 0, 1, 0)
    assert (
        report.summary
        == "Same number of nodes: add_ at model.py:1 in a changed op from aten::add to aten::add_"
    )


def test_another_shape_is_a_change_and_another_op_of_that_shape_is_not_the_same_node():
    def with_op(op, shape):
        return Builder().node(op, "a", 1, type="op", shape=shape).capture(simulated=True)

    report = compare(with_op("gelu", "float32[4]"), with_op("gelu", "float32[8]"))
    assert counts(report) == (0, 0, 1, 0)
    change = "gelu at model.py:1 in a changed shape from float32[4] to float32[8]"
    assert report.summary == f"Same number of nodes: {change}"
    report = compare(with_op("gelu", "float32[4]"), with_op("relu", "float32[4]"))
    assert counts(report) == (1, 1, 0, 0)


def test_a_stream_that_changed():
    before = Builder().node("mul", "a", 1).node("add", "b", 2).node("mul", "c", 3)
    after = Builder().node("mul", "a", 1).node("add", "b", 2, stream=1).node("mul", "c", 3)
    report = compare(before.capture(), after.capture())
    (row,) = report.changes
    (attribute,) = row.attributes
    assert (attribute.name, attribute.a, attribute.b) == ("stream", "capture stream", "side")
    assert (
        report.summary
        == "Same number of nodes: add at model.py:2 in b changed stream from capture stream to side"
    )


@pytest.mark.parametrize(
    ("before", "after", "attributes"),
    [
        ({"copy": Copy("dtod", 4096)}, {"copy": Copy("dtod", 8192)}, ["bytes"]),
        ({"copy": Copy("dtod", 4096)}, {"copy": Copy("htod", 4096)}, ["kind"]),
        ({"fill": Fill(512, 0)}, {"fill": Fill(512, 1)}, ["value"]),
    ],
)
def test_copies_and_fills(before, after, attributes):
    kind = "memcpy" if "copy" in before else "memset"
    a, b = (
        Builder().node("copy_", "a", 1, type=kind, **more).capture() for more in (before, after)
    )
    (row,) = compare(a, b).changes
    assert [attribute.name for attribute in row.attributes] == attributes


def test_dependencies_between_nodes_of_both():
    def with_edges(*edges):
        nodes = Builder().node("mul", "a", 1).node("add", "a", 2).node("mul", "b", 3)
        return nodes.capture(*edges)

    report = compare(with_edges((0, 1), (1, 2)), with_edges((0, 1), (0, 2)))
    assert report.different
    assert [(row.change, row.source, row.target) for row in report.edges] == [
        ("removed", "add model.py:2 a", "mul model.py:3 b"),
        ("added", "mul model.py:1 a", "mul model.py:3 b"),
    ]
    assert report.summary == "Same number of nodes: 1 dependency is gone; 1 dependency is new"


def test_a_node_that_is_gone_leaves_its_neighbors_to_each_other():
    report = compare(block().capture(), block(adds=()).capture())
    assert counts(report) == (6, 0, 0, 0)
    assert not report.edges
    assert not compare(block(adds=()).capture(), block().capture()).edges


def test_an_edge_of_another_kind_is_another_dependency():
    recorded = block().capture()
    graph = recorded.graphs[0]
    edges = (replace(graph.edges[0], type=1, from_port=1), *graph.edges[1:])
    report = compare(recorded, replace(recorded, graphs=(replace(graph, edges=edges),)))
    assert (report.graphs[0].edges_removed, report.graphs[0].edges_added) == (1, 1)


def test_nodes_that_run_in_another_order():
    before = (
        Builder().node("mul", "a", 1).node("add", "b", 2).node("mul", "c", 3).node("add", "d", 4)
    )
    after = (
        Builder().node("add", "d", 4).node("mul", "a", 1).node("add", "b", 2).node("mul", "c", 3)
    )
    report = compare(before.capture(), after.capture())
    assert counts(report) == (0, 0, 0, 1)
    assert report.different
    assert report.summary == "Same number of nodes: 1 node runs in another order"
    assert not report.edges


def test_graphs_of_one_capture_alone():
    both = small()
    forward = replace(both, graphs=both.graphs[:1], memory=Memory())
    report = compare(both, forward)
    assert [(row.name, row.change) for row in report.graphs] == [
        ("forward", "same"),
        ("backward", "removed"),
    ]
    assert "the graph backward is gone (5 nodes)" in report.summary
    assert [row.change for row in compare(forward, both).graphs] == ["same", "added"]


def test_graphs_are_matched_by_callable_before_their_order():
    def with_callables(*names):
        graphs = []
        for number, name in enumerate(names):
            nodes = tuple(Node(at, "empty") for at in range({"f": 2, "g": 3}[name]))
            graphs.append(Graph(f"forward {number}", "forward", number, nodes=nodes))
        entry = Entry("model.py:build", "callables", callables=names)
        return replace(capture(graphs), entry=entry)

    assert not compare(with_callables("f", "g"), with_callables("g", "f")).different


def test_bodies_are_matched_by_the_node_that_runs_them():
    recorded = nested()
    other = nested()
    step, body, inner = other.graphs
    fewer = replace(inner, nodes=(), edges=())
    assert not compare(recorded, other).different
    report = compare(recorded, replace(other, graphs=(step, body, fewer)))
    assert [row.change for row in report.graphs] == ["same", "same", "changed"]
    alone = replace(recorded, graphs=(replace(step, nodes=(step.nodes[0],), edges=()),))
    report = compare(recorded, alone)
    assert [row.change for row in report.graphs] == ["changed", "removed", "removed"]


def test_bytes_of_a_pool():
    def with_memory(segment, live):
        blocks = (Block(0, live, live, "active_allocated"),)
        pool = Pool((0, 1), "graphs", (Segment(0, segment, None, "small", blocks),))
        return block().capture(memory=Memory((pool,)))

    report = compare(with_memory(2 << 20, 512), with_memory(4 << 20, 512))
    assert report.different
    assert report.summary == "Same number of nodes: the pool graphs reserves 2.0 MiB more"
    report = compare(with_memory(2 << 20, 1024), with_memory(2 << 20, 512))
    assert report.summary == "Same number of nodes: the pool graphs holds at the end 512 B less"
    report = compare(with_memory(2 << 20, 512), block().capture())
    assert report.summary == "Same number of nodes: the pool graphs is gone"


def test_times_are_shown_and_not_judged():
    def with_duration(nanoseconds):
        recorded = block().capture()
        graph = recorded.graphs[0]
        nodes = tuple(
            replace(node, duration_ns=nanoseconds if node.id == 1 else 100) for node in graph.nodes
        )
        return replace(recorded, graphs=(replace(graph, nodes=nodes),))

    report = nothing(with_duration(100), with_duration(5000))
    assert [(row.of, row.kind, row.a, row.b) for row in report.times] == [
        ("forward", "nodes", 1200, 6100)
    ]
    (line,) = report.lines
    assert (line.op, line.line, line.a, line.b) == ("aten::addmm", "model.py:11", 300, 5200)
    assert nothing(with_duration(100), block().capture()).times == ()


def test_a_replay_takes_as_long_as_profile_says():
    recorded = block().capture()
    times = GraphTimes(0, replay_ns=(9000.0, 9500.0, 30_000.0), empty_ns=(1500.0,))
    recorded = replace(recorded, profile=Profile("cupti", (times,)))
    (row,) = nothing(recorded, recorded).times
    assert (row.of, row.kind, row.a, row.b) == ("forward", "replay", 8000, 8000)
    assert gaps.timeline_of(recorded, 0).replay_ns == row.a


def test_another_environment_is_noted():
    recorded = block().capture()
    other = replace(
        recorded, environment=replace(recorded.environment, torch="2.14.0", driver="600")
    )
    report = nothing(recorded, other)
    (note,) = report.notes
    assert note == (
        "torch 2.13.0 in A, 2.14.0 in B; driver 580.82 in A, 600 in B: kernels and sizes may "
        "differ because of that"
    )


def test_findings_notes_and_eager_launches_of_one_side():
    recorded = block().capture()
    other = block(Builder().node("f", "a", 1, type="host")).capture(
        caveats=(Caveat("c", "take care"),)
    )
    recorded, other = (
        replace(side, graphs=(replace(side.graphs[0], eager_launches=count),))
        for side, count in ((recorded, 12), (other, 13))
    )
    notes = " ".join(compare(recorded, other).notes)
    assert "finding only in B: forward has 1 host node" in notes
    assert "note only in B: take care (c)" in notes
    assert "forward: eager made 12 launches in A, 13 in B" in notes


def test_a_gpu_and_the_simulated_device_are_not_compared():
    with pytest.raises(
        CgtoolError, match=r"y was captured on the simulated device, x on NVIDIA"
    ) as e:
        compare(small(), capture([], simulated=True), names=("x", "y"))
    assert e.value.failure.exit_code == 2


# What always holds


NODES = st.lists(
    st.tuples(
        st.sampled_from(["add", "mul"]),
        st.sampled_from(["a", "a.b", "c", None]),
        st.integers(1, 3),
        st.integers(0, 3),
        st.integers(1, 2),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=40,
)


@st.composite
def models(draw):
    """Nodes of few kinds, so that many are equal."""
    builder = Builder()
    for node in draw(NODES):
        builder.node(*node)
    return builder.capture()


def with_nodes(recorded: Capture, nodes) -> Capture:
    numbered = tuple(replace(node, id=at) for at, node in enumerate(nodes))
    graph = replace(recorded.graphs[0], nodes=numbered, edges=chain(len(numbered)))
    return replace(recorded, graphs=(graph,))


@given(models(), st.data())
def test_removing_nodes_removes_as_many_and_adding_them_adds_as_many(recorded, data):
    nodes = recorded.graphs[0].nodes
    kept = data.draw(st.lists(st.booleans(), min_size=len(nodes), max_size=len(nodes)))
    fewer = with_nodes(recorded, [node for node, keep in zip(nodes, kept, strict=True) if keep])
    gone = kept.count(False)
    report = compare(recorded, fewer)
    assert counts(report) == (gone, 0, 0, 0)
    assert report.different == (gone > 0)
    assert not report.edges
    assert counts(compare(fewer, recorded)) == (0, gone, 0, 0)


@given(models(), st.data())
def test_one_other_kernel_is_one_change(recorded, data):
    nodes = list(recorded.graphs[0].nodes)
    at = data.draw(st.integers(0, len(nodes) - 1))
    nodes[at] = replace(nodes[at], kernel=replace(nodes[at].kernel, function=4))
    recorded = replace(recorded, functions=(*FUNCTIONS, Function("another")))
    report = compare(recorded, with_nodes(recorded, nodes))
    assert counts(report) == (0, 0, 1, 0)
    (row,) = report.changes
    assert row.attributes[0].b == "another"


@given(models(), models())
@settings(max_examples=200)
def test_every_node_is_reported_once_and_swapping_mirrors(a, b):
    forth, back = compare(a, b), compare(b, a)
    (there,), (here,) = forth.graphs, back.graphs
    assert (there.a, there.b) == (here.b, here.a)
    assert (there.removed, there.added) == (here.added, here.removed)
    assert (there.changed, there.moved) == (here.changed, here.moved)
    assert (there.edges_removed, there.edges_added) == (here.edges_added, here.edges_removed)
    assert forth.different == back.different
    assert there.a - there.removed == there.b - there.added
    mirror = {"removed": "added", "added": "removed"}
    names = nodes_of(forth)
    assert names == {(mirror.get(change, change), b, a) for change, a, b in nodes_of(back)}
    for side in (1, 2):
        ids = [node[side] for node in names if node[side] is not None]
        assert len(ids) == len(set(ids))


def nodes_of(report):
    """Every node that is reported, with its change."""
    return {(row.change, a, b) for row in report.changes for a, b in zip_longest(row.a, row.b)}


def test_another_amount_of_dynamic_shared_memory_is_another_launch():
    before = small()
    forward = before.graphs[0]
    launch = replace(forward.nodes[0].kernel, dynamic_shared_bytes=2048)
    nodes = (replace(forward.nodes[0], kernel=launch), *forward.nodes[1:])
    after = replace(before, graphs=(replace(forward, nodes=nodes), before.graphs[1]))
    difference = compare(before, after)
    (row,) = difference.changes
    (attribute,) = row.attributes
    assert (attribute.name, attribute.a, attribute.b) == ("dynamic shared bytes", "0 B", "2,048 B")
    assert "launch" in difference.summary
