"""Kernels of a trace are matched with their own nodes, or with none."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from cgtool.analysis.graph.kernel_names import demangle, words_of
from cgtool.analysis.graph.places import Places
from cgtool.analysis.graph.schedule import Order
from cgtool.analysis.trace_match import match_launches
from cgtool.analysis.trace_report import annotate_report
from cgtool.model.capture import Capture, Copy, Edge, Function, Graph, KernelLaunch, Node, Origin
from cgtool.model.capture_file import read
from cgtool.model.gpu_trace import ChromeTrace, Record, read_chrome
from cgtool.model.ledger import Ledger, LedgerGraph
from tests.builders import capture
from tests.gold_files import GOLD
from tests.recorded import recorded
from tests.strategies import captures, edges
from tests.traces import eager, replays, trace

TRACES = GOLD / "traces"


@pytest.fixture
def read_events(tmp_path):
    """The trace that holds these events, as it is read from a file."""

    def read_events(events) -> ChromeTrace:
        (tmp_path / "trace.json").write_text(json.dumps(trace(events)))
        return read_chrome(tmp_path / "trace.json")

    return read_events


def piece(module: str, sizes=(1, 1)) -> tuple[Graph, list[Origin]]:
    """A graph of two or three kernels in a chain, and where they come from."""
    nodes = [
        Node(at, "kernel", kernel=KernelLaunch(at, (size, 1, 1), (64, 1, 1)))
        for at, size in enumerate(sizes)
    ]
    origins = [Origin(op, module) for op in ("aten::mm", "aten::relu", "aten::sum")[: len(sizes)]]
    chained = tuple(Edge(at, at + 1) for at in range(len(sizes) - 1))
    return Graph("piece", "step", nodes=tuple(nodes), edges=chained), origins


def pieces(*modules: str, sizes=(1, 1)) -> Capture:
    """Graphs of the same kernels, each of another module."""
    graphs, origins = [], []
    for number, module in enumerate(modules):
        graph, own = piece(module, sizes)
        nodes = [structs.replace(node, origin=len(origins) + node.id) for node in graph.nodes]
        graphs.append(structs.replace(graph, name=f"piece {number}", nodes=tuple(nodes)))
        origins += own
    functions = tuple(map(Function, ("gemm_kernel", "relu_kernel", "sum_kernel")))
    return structs.replace(capture(graphs), origins=tuple(origins), functions=functions)


def hows(launches) -> list[str]:
    return [match.how for launch in launches for match in launch.fit.matches]


def reaches(count, pairs):
    """By node: the nodes that run after it, step by step."""
    after = {node: {b for a, b in pairs if a == node} for node in range(count)}
    while (more := {n: set().union(s, *(after[m] for m in s)) for n, s in after.items()}) != after:
        after = more
    return after


@given(st.integers(0, 9).flatmap(lambda count: st.tuples(st.just(count), edges(count))))
def test_the_order_of_nodes_is_what_the_edges_force(drawn):
    count, its_edges = drawn
    order = Order(count, its_edges)
    after = reaches(count, [(edge.source, edge.target) for edge in its_edges])
    for first in range(count):
        for second in range(count):
            assert order.before(first, second) == (second in after[first])
    assert order.is_chain == all(b in after[a] for a in range(count) for b in range(a + 1, count))


@given(captures(), st.integers(0, 5), st.booleans())
def test_never_another_node(tmp_path_factory, drawn, seed, ids):
    """Whatever the graph, and in any order that its edges admit."""
    nodes = [node for graph in drawn.graphs for node in graph.nodes]
    assume(all(node.kernel is not None for node in nodes if node.type == "kernel"))
    tops = [at for at, graph in enumerate(drawn.graphs) if graph.parent is None]
    events = replays(drawn, tops, ids=ids, shuffle=seed)
    file = tmp_path_factory.mktemp("traces") / "trace.json"
    file.write_text(json.dumps(trace(events)))
    found = read_chrome(file)
    places = Places(drawn)
    truth = [event["args"]["truth"] for event in events if event["cat"] != "cuda_runtime"]
    rows = dict(zip((record.row for record in found.records), truth, strict=True))
    for launch in match_launches(drawn, found.records):
        assert launch.fit.why is None
        for record, match in zip(launch.records, launch.fit.matches, strict=True):
            graph, node = rows[record.row]
            place = places.of(drawn.graphs[graph].nodes[node])
            assert (graph, node) in match.targets
            if match.how != "ambiguous":
                assert match.place == place
            elif match.place.op is not None:
                assert match.place.op == place.op


def test_launches_of_a_graph_and_kernels_outside(read_events):
    step = recorded("train_step")
    found = read_events([*eager(0), *replays(step, [0, 0]), *eager(1)])
    launches = match_launches(step, found.records)
    assert found.outside == 2
    assert [launch.fit.graphs for launch in launches] == [(0,), (0,)]
    assert set(hows(launches)) == {"order"}
    assert [match.targets for match in launches[0].fit.matches] == [
        ((0, node.id),) for node in step.graphs[0].nodes
    ]


def test_equal_kernels_on_two_branches(read_events):
    """Without ids they may be each other; with ids they are themselves."""
    streams = recorded("two_streams")
    launches = match_launches(streams, read_events(replays(streams, [0], shuffle=1)).records)
    assert "ambiguous" in hows(launches)
    launches = match_launches(
        streams, read_events(replays(streams, [0], ids=True, shuffle=1)).records
    )
    assert set(hows(launches)) == {"node id"}


def test_many_equal_kernels_share_the_list_of_their_nodes(read_events):
    """Lists of their own took 24 GB for 50,000 nodes."""
    kernel = KernelLaunch(0, (1, 1, 1), (64, 1, 1))
    origins = tuple(Origin("aten::relu", f"branches.{at}") for at in range(400))
    nodes = tuple(Node(at, "kernel", origin=at, kernel=kernel) for at in range(400))
    graphs = [Graph(name, "step", nodes=nodes) for name in ("one", "two")]
    wide = structs.replace(capture(graphs), origins=origins, functions=(Function("relu_kernel"),))
    records = read_events(replays(wide, [0])).records
    tracemalloc.start()
    try:
        (launch,) = match_launches(wide, records)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert hows([launch]) == ["ambiguous"] * 400
    assert len(launch.fit.matches[0].targets) == 800
    assert peak < 4 << 20


def test_a_launch_of_other_kernels(read_events):
    step = recorded("train_step")
    events = replays(step, [0])
    events[5]["name"] = "another_kernel"
    del events[9]
    (launch,) = match_launches(step, read_events(events).records)
    assert launch.fit.graphs == ()
    assert set(hows([launch])) == {"none"}
    assert launch.fit.why is not None
    assert launch.fit.why.startswith("closest to `step`, but it runs 1 other (another_kernel) and")


def test_a_launch_of_another_program(read_events):
    (launch,) = match_launches(
        recorded("train_step"), read_events(replays(recorded("convnet"), [0])).records
    )
    assert launch.fit.why is not None
    assert launch.fit.why.startswith("no graph of the capture has more than half of ")


def test_ids_that_lead_to_kernels_of_other_names(read_events):
    step = recorded("train_step")
    events = replays(step, [0], ids=True)
    events[5]["name"] = "another_kernel"
    assert set(hows(match_launches(step, read_events(events).records))) == {"none"}


@pytest.mark.parametrize(
    "name", ["memcpy128", "memcpy32_post", "memcpyDtoD2D_aligned_smalldiffpitch"]
)
def test_kernels_with_which_the_driver_copies(read_events, name):
    """A node that copies may run one; a kernel of the program may have such a name, too."""
    copy = Node(1, "memcpy", origin=1, copy=Copy("dtod", 64))
    layer = pieces("a")
    graph = structs.replace(layer.graphs[0], nodes=(layer.graphs[0].nodes[0], copy))
    events = replays(structs.replace(layer, graphs=(graph,)), [0])
    events[-1] |= {"cat": "kernel", "name": name}
    events[-1]["args"] |= {"grid": [4, 1, 1], "block": [64, 1, 1]}
    found = read_events(events).records
    assert hows(match_launches(structs.replace(layer, graphs=(graph,)), found)) == ["order"] * 2
    named = structs.replace(layer, functions=(layer.functions[0], Function(name)))
    events = replays(named, [0])
    assert hows(match_launches(named, read_events(events).records)) == ["order"] * 2
    assert hows(match_launches(structs.replace(named, graphs=(graph,)), found)) == ["none"] * 2


def test_other_shapes(read_events):
    """The kernels are those of the graph, their grids are not."""
    recorded_at, traced_at = pieces("a", sizes=(8, 8)), pieces("a", sizes=(16, 16))
    assert set(hows(match_launches(recorded_at, read_events(replays(traced_at, [0])).records))) == {
        "names"
    }
    both = structs.replace(recorded_at, graphs=(*traced_at.graphs, *recorded_at.graphs))
    launches = match_launches(both, read_events(replays(traced_at, [0])).records)
    assert launches[0].fit.graphs == (0,)


def test_equal_graphs_of_different_modules(read_events):
    layers = pieces("layers.0", "layers.1")
    launches = match_launches(layers, read_events(replays(layers, [1, 0])).records)
    assert set(hows(launches)) == {"ambiguous"}
    assert launches[0].fit.matches[0].place.op == "aten::mm"
    assert launches[0].fit.matches[0].place.module == "layers.0 or layers.1"


def test_equal_graphs_are_numbered_in_the_order_of_their_capture(read_events):
    layers = pieces("layers.0", "layers.1")
    launches = match_launches(layers, read_events(replays(layers, [1, 0, 1], ids=True)).records)
    assert [launch.fit.graphs for launch in launches] == [(1,), (0,), (1,)]
    # One of the two alone may be either.
    launches = match_launches(layers, read_events(replays(layers, [1], ids=True)).records)
    assert launches[0].fit.graphs == (0, 1)


def test_equal_graphs_of_several_processes(read_events):
    """Of torchrun: each process has the same graphs, and the trace is of one of them."""
    layers = pieces("layers.0", "layers.1", "layers.0", "layers.1")
    entries = tuple(LedgerGraph(at // 2, at % 2, "f", graph=at) for at in range(4))
    layers = structs.replace(layers, ledger=Ledger(("torchrun",), 1, 0, graphs=entries))
    launches = match_launches(layers, read_events(replays(layers, [1, 0], ids=True)).records)
    assert [launch.fit.graphs for launch in launches] == [(1, 3), (0, 2)]
    assert set(hows(launches)) == {"node id"}


def test_launches_of_several_devices(read_events):
    """Of traces that were put together: each process counts its launches."""
    step = recorded("train_step")
    first, second = replays(step, [0]), replays(step, [0])
    for event in second:
        event["args"]["device"] = 1
        if event["cat"] != "cuda_runtime":
            event["pid"] = 1
    launches = match_launches(step, read_events([*first, *second]).records)
    assert [len(launch.records) for launch in launches] == [len(first) - 1] * 2
    assert set(hows(launches)) == {"order"}


def later(events, microseconds):
    return [{**event, "ts": event["ts"] + microseconds} for event in events]


@pytest.mark.parametrize("after", [0.1, 5_000])
def test_two_processes_on_one_gpu(after, read_events):
    """In a trace that was merged: the same device, the same numbers of launches, graphs and nodes;
    one after the other, or taking turns."""
    step = recorded("train_step")
    first = replays(step, [0, 0], ids=True, process=1)
    second = later(replays(step, [0, 0], ids=True, process=2), after)
    launches = match_launches(step, read_events([*first, *second]).records)
    assert [len(launch.records) for launch in launches] == [len(first) // 2 - 1] * 4
    assert set(hows(launches)) == {"node id"}
    for launch in launches:
        assert [match.targets[0][1] for match in launch.fit.matches] == [
            record.node for record in launch.records
        ]


def test_two_processes_on_one_gpu_without_ids(read_events):
    """Launches of the same kernels are told apart where one has ended before the other begins; of
    those that take turns, nothing is known."""
    step = recorded("train_step")
    first = replays(step, [0], process=1)
    after = later(replays(step, [0], process=2), 5_000)
    launches = match_launches(step, read_events([*first, *after]).records)
    assert [len(launch.records) for launch in launches] == [len(first) - 1] * 2
    assert set(hows(launches)) == {"order"}
    between = later(replays(step, [0], process=2), 0.1)
    launches = match_launches(step, read_events([*first, *between]).records)
    assert set(hows(launches)) == {"none"}


@pytest.mark.parametrize("names", [(0, 1), ("[TP00] 0", "[TP01] 0")])
def test_ranks_in_one_file(names, read_events):
    """Each on a GPU of its own, at the same time, with the same numbers. Some tools give processes
    and devices names."""
    layers = pieces("layers.0", "layers.1")
    events = []
    for rank, device in enumerate(names):
        for event in replays(layers, [1, 0], ids=True, process=4321 + rank):
            is_call = event["cat"] == "cuda_runtime"
            owner = event["pid"] if isinstance(device, int) else f"[TP0{rank}] {event['pid']}"
            events.append({**event, "pid": owner if is_call else device})
    trace = read_events(events)
    launches = match_launches(layers, trace.records)
    assert [launch.fit.graphs for launch in launches] == [(1,), (1,), (0,), (0,)]
    assert set(hows(launches)) == {"node id"}
    assert sorted(trace.names.values()) == [name for name in names if isinstance(name, str)]


def test_a_process_numbers_its_own_graphs(read_events):
    """Two processes replay one graph each, of two that are equal: either may be each of them."""
    layers = pieces("layers.0", "layers.1")
    first, second = (
        replays(layers, [graph], ids=True, process=process) for graph, process in ((0, 1), (1, 2))
    )
    for event in second:
        event["args"]["correlation"] += 50
    launches = match_launches(layers, read_events([*first, *second]).records)
    assert [launch.fit.graphs for launch in launches] == [(0, 1), (0, 1)]


def test_a_call_of_another_process_with_the_number_of_a_launch(read_events):
    step = recorded("train_step")
    events = replays(step, [0], ids=True)
    call, kernel = eager(0)
    for each in (call, kernel):
        each["args"]["correlation"] = events[0]["args"]["correlation"]
    call["pid"] = 9999
    trace = read_events([call, kernel, *events])
    assert trace.outside == 1
    assert set(hows(match_launches(step, trace.records))) == {"node id"}


def test_a_launch_that_the_trace_cuts_off(read_events):
    """Where ids name the nodes, and the graph was launched as a whole before."""
    step = recorded("train_step")
    events = replays(step, [0, 0], ids=True)
    launches = match_launches(step, read_events(events[:-5]).records)
    assert set(hows(launches)) == {"node id"}
    assert len(launches[1].records) == len(launches[0].records) - 5
    launches = match_launches(step, read_events(events[:20]).records)
    assert set(hows(launches)) == {"none"}
    launches = match_launches(step, read_events(replays(step, [0, 0])[:-5]).records)
    assert hows(launches)[-1] == "none"


def test_a_trace_that_begins_while_a_graph_runs(read_events):
    """Without ids: the launch call is not in the trace, nor are the first kernels."""
    step = recorded("train_step")
    events = replays(step, [0, 0])
    launches = match_launches(step, read_events(events[8:]).records)
    assert set(hows(launches)) == {"order"}
    assert [match.targets for match in launches[0].fit.matches] == [
        match.targets for match in launches[1].fit.matches[7:]
    ]
    # Another launch of that graph has to be complete, and the end of this one to be the same.
    count = len(step.graphs[0].nodes) + 1
    launches = match_launches(step, read_events(events[8:count]).records)
    assert set(hows(launches)) == {"none"}
    launches = match_launches(step, read_events([*events[8:30], *events[31:]]).records)
    assert set(hows(launches[:1])) == {"none"}
    # A launch that is in the trace runs all of its nodes.
    launches = match_launches(step, read_events([events[0], *events[8:]]).records)
    assert set(hows(launches[:1])) == {"none"}


def test_the_rest_of_one_of_two_graphs(read_events):
    """What is left of the longer one is all of the other one."""
    layers = pieces("layers.0", "layers.1")
    first, second = layers.graphs
    longer = Node(0, "kernel", origin=0, kernel=KernelLaunch(1, (9, 1, 1), (64, 1, 1)))
    moved = [structs.replace(node, id=node.id + 1) for node in second.nodes]
    second = structs.replace(second, nodes=(longer, *moved), edges=(Edge(0, 1), Edge(1, 2)))
    both = structs.replace(layers, graphs=(first, second))
    events = replays(both, [1, 0, 1])
    launches = match_launches(both, read_events(events[2:]).records)
    assert launches[0].fit.matches[0].place.module == "layers.0 or layers.1"
    assert hows(launches) == ["ambiguous"] * 2 + ["order"] * 5


def test_the_rest_of_a_graph_that_has_another_number(read_events):
    """CUPTI's number says that it is not the graph whose launch is complete, but which it is, no
    complete launch says."""
    layers = pieces("layers.0", "layers.1")
    first, second = layers.graphs
    other = KernelLaunch(1, (9, 1, 1), (64, 1, 1))
    begin = structs.replace(second.nodes[0], kernel=other)
    second = structs.replace(second, nodes=(begin, second.nodes[1]))
    both = structs.replace(layers, graphs=(first, second))
    events = replays(both, [1, 0], ids=True)
    launches = match_launches(both, read_events(events[2:]).records)
    assert hows(launches) == ["none", "node id", "node id"]


def test_the_rest_of_one_of_two_graphs_that_end_alike(read_events):
    """One of them is complete in the trace; it may be the other one all the same."""
    layers = pieces("layers.0", "layers.1", sizes=(1, 1, 1))
    first, second = layers.graphs
    begin = structs.replace(second.nodes[0], kernel=KernelLaunch(0, (9, 1, 1), (64, 1, 1)))
    second = structs.replace(second, nodes=(begin, *second.nodes[1:]))
    both = structs.replace(layers, graphs=(first, second))
    launches = match_launches(both, read_events(replays(both, [1, 0])[2:]).records)
    assert launches[0].fit.matches[0].place.module == "layers.0 or layers.1"
    assert hows(launches) == ["ambiguous"] * 2 + ["order"] * 3


@pytest.mark.parametrize(
    "mangled", [function.name for function in recorded("transformer").functions]
)
def test_names_of_two_demanglers(mangled):
    """The words of a name are the same, mangled or not."""
    assert words_of(mangled) == words_of(demangle(mangled))


GNU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::"
    "TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#2}::"
    "operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >(int, at::native::"
    "GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() "
    "const::{lambda()#2}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>)"
)
MANGLED = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_18GeluCUDAKernelImplERNS_18Tensor"
    "IteratorBaseENS0_8GeluTypeEENKUlvE0_clEvENKUlvE0_clEvEUlfE_St5arrayIPcLm2EEEEviT0_T1_"
)


def test_a_name_as_pytorch_writes_it_into_a_trace():
    assert words_of(GNU) == words_of(MANGLED)
    assert words_of(GNU) != words_of(MANGLED.replace("Li4E", "Li8E"))


@pytest.mark.parametrize(("name", "graphs", "records"), [("engine", 8, 84), ("timm_infer", 1, 423)])
def test_traces_of_an_h200(name, graphs, records):
    """One of torch.profiler, without ids, and CUPTI's records of another process, with ids, which
    say the same."""
    program = read(TRACES / f"{name}.cgt")
    of_profiler = read_chrome(TRACES / f"{name}.json.gz")
    launches = match_launches(program, of_profiler.records)
    assert hows(launches) == ["order"] * records
    with_ids = read_chrome(TRACES / f"{name}-ids.json.gz").records
    named = match_launches(program, with_ids)
    assert hows(named) == ["node id"] * records
    assert {launch.fit.graphs for launch in named} == {(graph,) for graph in range(graphs)}
    without = [structs.replace(record, node=None, graph=None) for record in with_ids]
    for launch, known in zip(match_launches(program, without), named, strict=True):
        assert set(known.fit.graphs) <= set(launch.fit.graphs)
        for match, truth in zip(launch.fit.matches, known.fit.matches, strict=True):
            assert {node for _, node in match.targets} == {node for _, node in truth.targets}
            assert match.place == truth.place


@pytest.mark.parametrize(
    ("name", "records", "equal"),
    [("compiled_breaks", 147, 0), ("compiled_blocks", 223, 1), ("compiled_shapes", 266, 0)],
)
def test_traces_of_compiled_training_on_an_h200(name, records, equal):
    """The profiler's own ranges around a launch say which compiled function it was (``truth``).

    The programs are those of tests/gpu/test_annotate_compiled.py. Inductor tuned some kernels to
    other sizes in the traced process. ``equal``: launches of graphs that nothing tells apart.
    """
    program = read(TRACES / f"{name}.cgt")
    keys = {entry.graph: entry.key for entry in program.ledger.graphs}
    read_trace = read_chrome(TRACES / f"{name}.json.gz")
    truths = {
        event["args"]["correlation"]: event["args"]["truth"]
        for event in (json.loads(bytes(event)) for event in read_trace.events)
        if "truth" in event["args"]
    }
    launches = match_launches(program, read_trace.records)
    assert set(hows(launches)) == {"order", "neighbors"}
    assert len(hows(launches)) == records
    several = 0
    for launch in launches:
        names = {keys[graph] for graph in launch.fit.graphs}
        # The launch of the first backward came before the trace.
        truth = truths.get(launch.records[0].launch[1], "backward")
        assert any(each.endswith(truth) for each in names)
        several += len(names) > 1
    assert several == equal


def sized(rows, tile=(2, 1, 1)):
    """A kernel of Inductor whose grid depends on the rows, and a library's, whose grid does not."""
    block = (64, 1, 1)
    return [("triton_poi_fused_gelu_0", (rows, 1, 1), block), ("gemm", tile, block)]


@pytest.mark.parametrize("owner", ["torch.compile", "vllm"])
def test_sizes_decide_where_one_graph_runs_again_and_again(owner):
    """The order of captures, from large to small, says nothing of the replays."""
    program = chains([sized(rows) for rows in (64, 32, 16)], owner)
    found = launched([sized(64), sized(64), sized(64), sized(16)])
    fits = [launch.fit.graphs for launch in match_launches(program, found)]
    assert fits == [(0,), (0,), (0,), (2,)]


def test_a_library_kernel_decides_against_a_tuned_one():
    program = chains([sized(64, (4, 1, 1)), sized(32, (2, 1, 1))], "torch.compile")
    # Tuned to the grid that the other graph's kernel had when it was recorded.
    (launch,) = match_launches(program, launched([sized(32, (4, 1, 1))]))
    assert (launch.fit.graphs, hows([launch])) == ((0,), ["order"] * 2)


def chains(graphs, owner):
    """A run whose graphs are these (kernel, grid, block), one after the other."""
    names = list(dict.fromkeys(name for graph in graphs for name, _, _ in graph))
    own = tuple(
        Graph(
            f"graph {at}",
            "step",
            nodes=tuple(
                Node(number, "kernel", kernel=KernelLaunch(names.index(name), grid, block))
                for number, (name, grid, block) in enumerate(graph)
            ),
            edges=tuple(Edge(number, number + 1) for number in range(len(graph) - 1)),
        )
        for at, graph in enumerate(graphs)
    )
    entries = tuple(
        LedgerGraph(0, at, owner, key=f"0/{at} forward", graph=at, began_ns=at)
        for at in range(len(graphs))
    )
    functions = tuple(Function(name) for name in names)
    ledger = Ledger(("python",), 1, 0, entries)
    return structs.replace(capture(own), functions=functions, ledger=ledger)


def launched(launches):
    return [
        Record(10 * at + number, "kernel", name, 100 * at + 10 * number, 100 * at + 10 * number + 5,
               (0, at), (*grid, *block))
        for at, launch in enumerate(launches)
        for number, (name, grid, block) in enumerate(launch)
    ]  # fmt: skip


def test_the_report_of_a_trace():
    program = read(TRACES / "engine.cgt")
    found = read_chrome(TRACES / "engine.json.gz")
    launches = match_launches(program, found.records)
    report = annotate_report(program, launches, trace="t.json", name="f.cgt", outside=found.outside)
    assert report.complete
    assert report.sentence == "84 of 84 kernels of 24 graph launches matched (100%), by order"
    assert [(row.graphs[0], len(row.graphs), row.launches, row.nodes) for row in report.graphs] == [
        ("capture 7", 1, 3, 10),
        ("capture 3", 1, 3, 3),
        ("capture 4", 3, 9, 2),
        ("capture 1", 2, 6, 3),
        ("capture 0", 1, 3, 3),
    ]
