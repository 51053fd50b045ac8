"""``cudagraph.recording()``: what a test asserts on the graphs that it has captured itself."""

from __future__ import annotations

import pytest

# See projects.py: what a run of pytester imports, it would import again.
import cgtool.devices.simulated.recorded_device
import cgtool.recorder.block
import cgtool.recorder.process  # noqa: F401
from tests.pytest_plugin.projects import run, write
from tests.pytest_plugin.test_fixture import no_frame_of_ours

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def _importable(pytester):
    """Its tests import ``model``."""
    pytester.syspathinsert()


ENGINE = """\
import cgtool
import torch


class Engine:
    def __init__(self):
        self.linear = torch.nn.Linear(64, 64, device="cuda")
        self.side = torch.cuda.Stream()
        self.graphs = {}

    def step(self, x):
        y = self.linear(x)
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            scale = (y * 2).sum()
        probabilities = y.relu().softmax(-1)
        torch.cuda.current_stream().wait_stream(self.side)
        return probabilities + scale

    def decode(self, batch):
        if batch not in self.graphs:
            x = torch.randn(batch, 64, device="cuda")
            self.step(x)
            graph = self.graphs[batch] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step(x)
        cgtool.note(batch=batch)
        self.graphs[batch].replay()
"""
RECORD = """
from model import Engine

def recorded(cudagraph, *batches):
    with cudagraph.recording() as run:
        engine = Engine()
        for batch in batches:
            engine.decode(batch)
    return run
"""


def test_a_graph_is_chosen_by_its_line_and_notes_and_asserted_on(pytester):
    write(
        pytester,
        RECORD
        + """
def test_step(cudagraph):
    run = recorded(cudagraph, 8, 16)
    graph = run.graph(line="model.py:25", batch=8)
    assert graph.name == run.graph(owner="Engine.decode", number=0).name
    assert graph.ops("sum").count == 1 and len(graph.nodes) == 6 and graph.depth == 4
    assert graph.ops("mul|sum").parallel_to(graph.ops("relu"))
    assert graph.ops("addmm").before(graph.ops("relu|sum"))
    assert graph.ops("add").after(graph.ops("sum|_softmax"))
    assert graph.ops("mul|sum").streams == ("stream 1",) and graph.nodes(stream=1).count == 2
    assert graph.nodes.streams == ("capture stream", "stream 1")
    assert graph.ops("*", line="model.py:14-15")[0].op == "aten::mul.Tensor"
    assert [edge.kind for edge in graph.ops("mul").edges_to(graph.ops("sum"))] == ["full"]
    assert graph.bodies == ()

def test_of_an_entry(cudagraph):
    graph = cudagraph("tests/entry.py:build").graph("forward")
    assert graph.ops("addmm").before(graph.ops("relu"))
""",
        ENGINE,
    )
    entry = "from torch import nn, randn\n\ndef build(device):\n    return "
    entry += "nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(device), (randn(2, 4, device=device),)\n"
    (pytester.path / "tests" / "entry.py").write_text(entry)
    run(pytester).assert_outcomes(passed=2)


def test_failures_name_the_nodes_with_their_lines(pytester):
    write(
        pytester,
        RECORD
        + """
@pytest.fixture
def graph(cudagraph):
    return recorded(cudagraph, 8).graph()

def test_order(graph):
    assert graph.ops("sum").before(graph.ops("relu"))

def test_parallel(graph):
    assert graph.ops("addmm|mul").parallel_to(graph.ops("relu"))

def test_present(graph):
    assert not graph.ops("sum")

def test_absent(graph):
    assert graph.ops("layer_norm").before(graph.ops("relu"))

def test_count(graph):
    assert graph.ops("mul").count == 2
""",
        ENGINE,
    )
    result = run(pytester)
    result.assert_outcomes(failed=5)
    result.stdout.fnmatch_lines(
        [
            "E*assert <not before: no path from any node with op=sum to 1 of 1 node with op=relu: "
            "3 aten::relu model.py:16 on capture stream>",
            "E*assert <not parallel: a path between every node with op=relu and 1 of 2 nodes with "
            "op=addmm|mul: 0 aten::addmm model.py:12 on capture stream>",
            "E*assert not <1 node with op=sum: 2 aten::sum model.py:15 on stream 1>",
            "E*assert <not before: no node with op=layer_norm; the graph has: addmm, mul, sum, "
            "relu, _softmax, add>",
            "E*where 1 = <1 node with op=mul: 1 aten::mul.Tensor model.py:15 on stream 1>.count",
        ]
    )
    assert no_frame_of_ours(result)


def test_wrong_choices_list_the_candidates(pytester):
    write(
        pytester,
        RECORD
        + """
def test_two(cudagraph):
    recorded(cudagraph, 8, 16).graph(line="model.py:25")

def test_none(cudagraph):
    recorded(cudagraph, 8, 16).graph(batch=9)

def test_no_field(cudagraph):
    recorded(cudagraph, 8).graph().nodes(stram=1)

def test_no_line(cudagraph):
    recorded(cudagraph, 8).graph().ops("mul", line="here")

def test_no_graph_line(cudagraph):
    recorded(cudagraph, 8).graph(line="model.py")

def test_early(cudagraph):
    with cudagraph.recording() as run:
        run.graph()

def test_another_device(cudagraph):
    cudagraph.recording(device="tpu")
""",
        ENGINE,
    )
    result = run(pytester)
    result.assert_outcomes(failed=7)
    candidates = [
        f"E*name='Engine.decode float32[[]{batch},64]', owner='Engine.decode', number={number}, "
        f"batch={batch}, 6 nodes, captured at model.py:25"
        for number, batch in enumerate((8, 16))
    ]
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: 2 graphs with line='model.py:25':",
            *candidates,
            "E*AssertionError: 0 graphs with batch=9; there are:",
            *candidates,
            "E*Failed: 'stram=1': there is no field 'stram'",
            "E*fix: fields: module, *",
            "E*Failed: 'line=here': 'here' is not FILE:LINE",
            "E*Failed: 'line=model.py': 'model.py' is not FILE:LINE",
            "E*Failed: the graphs are known when the block has ended",
            "E*Failed: cudagraph(): device='tpu': expected cuda, *",
        ]
    )
    assert no_frame_of_ours(result)


def test_the_device_is_chosen_as_for_the_fixture(pytester, monkeypatch):
    """Without a GPU: skipped where none was asked for, simulated by option, marker or argument."""
    import cgtool.pytest_plugin.marker as marker

    monkeypatch.setattr(marker, "_why_no_gpu", lambda: "nothing is plugged in")
    write(
        pytester,
        """
import torch

def test_by_default(cudagraph):
    with cudagraph.recording():
        raise AssertionError

@pytest.mark.cudagraph(device="simulated")
def test_marked(cudagraph):
    with cudagraph.recording() as run:
        assert torch.cuda.is_available()
    assert run.capture.environment.simulated and run.graphs == ()

@pytest.mark.cudagraph(device="cuda")
def test_argument(cudagraph):
    with cudagraph.recording(device="simulated"):
        torch.zeros(1, device="cuda")

@pytest.mark.cudagraph(device="cuda")
def test_required(cudagraph):
    with cudagraph.recording():
        raise AssertionError
""",
    )
    result = run(pytester, "-rs", device=None)
    result.assert_outcomes(skipped=1, passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*Failed: nothing is plugged in",
            "SKIPPED*no GPU: nothing is plugged in; --cudagraph-device simulated records without *",
        ]
    )
    assert no_frame_of_ours(result)


def test_what_the_device_does_not_have_skips_the_test(pytester):
    write(
        pytester,
        RECORD
        + """
@pytest.mark.parametrize("name", ["kernels", "copies", "memsets"])
def test_kind(cudagraph, name):
    assert not getattr(recorded(cudagraph, 8).graph(), name)()
""",
        ENGINE,
    )
    result = run(pytester, "-rs")
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(["SKIPPED*the nodes of the simulated device are ops*"])


def test_what_the_block_raises_is_the_error_of_the_test(pytester):
    write(
        pytester,
        """
def test_raises(cudagraph):
    with cudagraph.recording():
        {}["of the program"]

@pytest.mark.filterwarnings("ignore:cgtool.recording adds nothing")
def test_inside_another(cudagraph):
    with cudagraph.recording(), cudagraph.recording():
        pass
""",
    )
    result = run(pytester, "-rs")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["E*KeyError: 'of the program'", "SKIPPED*this process is already recorded, by *"]
    )
    assert no_frame_of_ours(result)


COMMUNICATOR = """\
import torch


class Communicator:
    # Ordered as collectives are: on a stream of its own, behind the caller's.
    def __init__(self):
        self.stream = torch.cuda.Stream()

    def run(self, op, *tensors, is_async=False):
        caller = torch.cuda.current_stream()
        self.stream.wait_stream(caller)
        with torch.cuda.stream(self.stream):
            op(*tensors)
        if not is_async:
            self.wait()

    def wait(self):
        torch.cuda.current_stream().wait_stream(self.stream)


def all_reduce(x):
    x.mul_(8)


def all_gather(out, x):
    torch.stack([x, x], out=out)
"""


def test_what_a_library_of_collectives_asserts_of_its_graphs(pytester):
    """After three tests of meta-pytorch/torchcomms (torchcomms#662), whose helper parses DOT: one
    collective is one node, those of a communicator stay in order on any streams, and streams that
    wait for each other make a chain."""
    write(
        pytester,
        """
import torch
from model import Communicator, all_gather, all_reduce

@pytest.fixture
def captured(cudagraph):
    def capture(step, communicators, *shapes):
        with cudagraph.recording() as run:
            ours = [Communicator() for _ in range(communicators)]
            tensors = [torch.ones(shape, device="cuda") for shape in shapes]
            streams = [torch.cuda.Stream() for _ in shapes]
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                step(ours, streams, tensors)
        return run.graph()
    return capture

def on(stream, after):
    stream.wait_stream(after)
    return torch.cuda.stream(stream)

@pytest.mark.parametrize("is_async", [False, True])
def test_one_collective(captured, is_async):
    def step(ours, streams, tensors):
        ours[0].run(all_reduce, *tensors, is_async=is_async)
        ours[0].wait()

    graph = captured(step, 1, (10, 10))
    assert graph.ops("mul_").count == len(graph.nodes) == 1

def test_streams_share_a_communicator(captured):
    def step(ours, streams, tensors):
        home = torch.cuda.current_stream()
        for x, stream in zip(tensors, streams):
            with on(stream, home):
                ours[0].run(all_reduce, x, is_async=True)
        ours[0].wait()

    graph = captured(step, 1, *[(10, 10)] * 4)
    assert graph.ops("mul_").count == graph.depth == 4

def test_a_chain_over_two_streams(captured):
    def step(ours, streams, tensors):
        x, total, out = tensors
        home = torch.cuda.current_stream()
        with on(streams[0], home):
            ours[0].run(all_reduce, x)
            torch.sum(x.flatten(), 0, keepdim=True, out=total)
        with on(streams[1], streams[0]):
            ours[1].run(all_gather, out, total)
        home.wait_stream(streams[1])

    graph = captured(step, 2, (10, 10), (1,), (2, 1))
    reduced, gathered = graph.ops("mul_"), graph.ops("stack|cat")
    assert reduced.count == graph.ops("sum").count == gathered.count == 1
    assert reduced.before(graph.ops("sum")) and graph.ops("sum").before(gathered)
""",
        COMMUNICATOR,
    )
    run(pytester).assert_outcomes(passed=4)
