"""Capturing on a real GPU: nodes, provenance, memory, and what goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from cgtool.analysis.graph.places import Places  # noqa: E402
from cgtool.model.options import CaptureOptions  # noqa: E402
from cgtool.program.workload import Workload, WorkloadPart  # noqa: E402
from tests.forked_workers import run_cgtool  # noqa: E402

pytestmark = pytest.mark.gpu

SAMPLES = [path for path in sorted(Path("samples").glob("*.py")) if "def build" in path.read_text()]


def quiet(_text: str) -> None:
    """No progress."""


def capture(function, args=(), modules=None, kind="callable", **options):
    from cgtool.devices.cuda.device import CudaDevice

    workload = Workload("test", kind, (WorkloadPart("test", function, args, {}, modules or {}),))
    return CudaDevice().capture(workload, CaptureOptions(**options), quiet)[0]


def ops_of(captured, graph=0):
    places = Places(captured)
    return [places.of(node).op for node in captured.graphs[graph].nodes]


def lines_of(captured, graph=0):
    places = Places(captured)
    return [places.of(node).line.line for node in captured.graphs[graph].nodes]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample_equals_plain_capture_and_every_node_has_a_place(sample):
    from benchmarks.gpu import plain_capture, types_of
    from cgtool.devices.cuda.device import CudaDevice
    from cgtool.program.load import load

    spec = f"{sample}:build"
    plain = [types_of(graph) for _, graph in plain_capture(load(spec, device="cuda"))]
    captured, _ = CudaDevice().capture(load(spec, device="cuda"), CaptureOptions(), quiet)
    assert [Counter(node.type for node in graph.nodes) for graph in captured.graphs] == plain
    places = Places(captured)
    for graph in captured.graphs:
        for node in graph.nodes:
            place = places.of(node)
            assert place.op and place.line, node
            if graph.phase == "backward":
                assert place.forward_frame
                # A bare nn.Sequential is called by this file, and by no line of the sample's.
                assert place.forward_frame.file.endswith((sample.name, "test_capture.py"))


def test_operators_have_their_own_lines():
    x = torch.randn(64, device="cuda")

    def function(x):
        y = x + 1
        z = y * x
        w = -z
        return w - y

    captured = capture(function, (x,))
    first = function.__code__.co_firstlineno
    assert lines_of(captured) == [first + 1, first + 2, first + 3, first + 4]
    assert [op.partition(".")[0] for op in ops_of(captured)] == [
        "aten::add",
        "aten::mul",
        "aten::neg",
        "aten::sub",
    ]


def test_backward_leads_to_the_forward_line_and_module():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).cuda()
    x = torch.randn(4, 8, device="cuda")
    captured = capture(model, (x,), {"": model})
    assert [graph.phase for graph in captured.graphs] == ["forward", "backward"]
    places = Places(captured)
    autograd_nodes = {places.of(node).autograd_node for node in captured.graphs[1].nodes}
    assert "TanhBackward0" in autograd_nodes
    modules = {
        places.of(node).module
        for node in captured.graphs[1].nodes
        if places.of(node).autograd_node == "TanhBackward0"
    }
    assert modules == {"1"}


def test_triton_kernel_outside_any_op_has_a_line(tmp_path):
    pytest.importorskip("triton")
    file = tmp_path / "kernels.py"
    file.write_text(
        "import torch, triton\n"
        "import triton.language as tl\n"
        "@triton.jit\n"
        "def double(x, y, n, BLOCK: tl.constexpr):\n"
        "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)\n"
        "def run(x):\n"
        "    y = torch.empty_like(x)\n"
        "    double[(4,)](x, y, x.numel(), BLOCK=256)\n"
        "    return y + 1\n"
        "def build(device):\n"
        "    return run, (torch.randn(1024, device=device),)\n"
    )
    from cgtool.devices.cuda.device import CudaDevice
    from cgtool.program.load import load

    captured, _ = CudaDevice().capture(
        load(f"{file}:build", device="cuda"), CaptureOptions(), quiet
    )
    assert lines_of(captured) == [9, 10]
    assert captured.functions[captured.graphs[0].nodes[0].kernel.function].name == "double"
    assert ops_of(captured) == [None, "aten::add.Tensor"]
    assert {pointer.tensor is not None for pointer in captured.graphs[0].nodes[0].kernel.pointers}


def test_compiled_code_is_captured_as_it_would_be_by_hand():
    from benchmarks.gpu import launches_of, plain_capture
    from cgtool.devices.cuda.device import CudaDevice

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = torch.nn.Linear(32, 32), torch.nn.LayerNorm(32)

        def forward(self, x):
            h = self.linear(x)
            h = torch.nn.functional.gelu(h)
            return self.norm(h)

    def make():
        torch.manual_seed(0)
        model = Net()
        compiled = torch.compile(model.cuda())
        x = torch.randn(8, 32, device="cuda")
        return Workload("test", "callable", (WorkloadPart("m", compiled, (x,), {}, {"": model}),))

    def kernels(graph):
        from cuda.bindings import driver as cu

        template = cu.CUgraph(graph.raw_cuda_graph())
        _, _, count = cu.cuGraphGetNodes(template, 0)
        _, nodes, count = cu.cuGraphGetNodes(template, count)
        names = []
        for node in nodes[:count]:
            code, params = cu.cuGraphKernelNodeGetParams(node)
            names.append(cu.cuFuncGetName(params.func)[1].decode() if int(code) == 0 else "other")
        return names

    plain = [kernels(graph) for _, graph in plain_capture(make())]
    torch.compiler.reset()
    captured, _ = CudaDevice().capture(make(), CaptureOptions(), quiet)
    assert any("triton" in name for name in plain[0])
    assert [launches_of(captured, graph) for graph in captured.graphs] == plain
    first = Net.forward.__code__.co_firstlineno
    lines = {(__file__, line) for line in range(first + 1, first + 4)}
    places = Places(captured)
    for graph in captured.graphs:
        found = [places.of(node) for node in graph.nodes]
        assert {(place.line.file, place.line.line) for place in found} <= lines
        assert all(place.op for place in found)
        assert "linear" in {place.module for place in found}


def test_ranges_of_the_user_are_annotations_in_forward_and_backward():
    x = torch.randn(64, device="cuda", requires_grad=True)

    def function(x):
        with torch.profiler.record_function("outer"):
            torch.cuda.nvtx.range_push("inner")
            y = x.sin()
            torch.cuda.nvtx.range_pop()
        return y.cos()

    captured = capture(function, (x,))
    places = Places(captured)
    by_graph = [[places.of(node).annotations for node in graph.nodes] for graph in captured.graphs]
    assert by_graph[0] == [("outer", "inner"), ()]
    assert ("outer", "inner") in by_graph[1]
    none = capture(function, (x,), annotations=False)
    assert all(not origin.annotations for origin in none.origins)


def test_a_node_type_that_is_not_known_has_its_number(monkeypatch):
    from cgtool.devices.cuda import nodes

    monkeypatch.delitem(nodes.NODE_TYPES, 0)
    captured = capture(lambda x: x + 1, (torch.zeros(64, device="cuda"),))
    assert [node.type for node in captured.graphs[0].nodes] == ["type_0"]
    assert ops_of(captured) == ["aten::add.Tensor"]


@pytest.mark.parametrize("check", [False, True])
def test_a_freed_input_is_reported_and_refused_on_request(check, tmp_path):
    source = (
        "import torch\n"
        "held = [torch.randn(1 << 22, device='cuda')]\n"
        "def function(x):\n"
        "    y = held[0]\n"
        "    if torch.cuda.is_current_stream_capturing():\n"
        "        held.clear()\n"
        "    return x + y\n"
        "def build(device):\n    return function, (torch.ones(1 << 22, device=device),)\n"
    )
    done = run_cli(tmp_path, source, *(["--check-input-liveness"] if check else []))
    assert done.returncode == (4 if check else 0), done.stderr
    assert "freed" in (done.stderr if check else done.stdout)
    if check:
        assert "model.py:7" in done.stderr


def test_memory_agrees_with_the_allocator_to_the_byte():
    from cgtool.analysis.pools import live_bytes, pools_report

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)).cuda()
    captured = capture(model, (torch.randn(32, 64, device="cuda"),), {"": model})
    pool = captured.memory.pools[0]
    live = sum(
        allocation.bytes
        for allocation in captured.memory.allocations
        if allocation.freed_at is None
    )
    assert live == live_bytes(pool)
    report = pools_report(captured)
    assert report.pools[0].reserved_bytes == sum(segment.bytes for segment in pool.segments)
    assert "cuBLAS workspace" in {row.holder for row in report.holders}
    assert "output" in {row.holder for row in report.holders}


def test_dropout_is_captured_with_its_random_state_and_differs_between_replays():
    from cgtool.devices.cuda import capture as cuda_capture
    from cgtool.devices.cuda.device import CudaDevice

    x = torch.ones(4096, device="cuda")
    part = WorkloadPart("dropout", lambda x: torch.nn.functional.dropout(x, 0.5), (x,))
    session = cuda_capture.prepare(
        CudaDevice(), Workload("test", "callable", (part,)), CaptureOptions(), quiet
    )
    output = session.outputs[0][0][1]
    session.graphs[0].graph.replay()
    first = output.clone()
    session.graphs[0].graph.replay()
    torch.cuda.synchronize()
    assert not torch.equal(first, output)


def test_a_generator_that_the_code_reaches_is_registered_and_advances():
    from cgtool.devices.cuda.device import CudaDevice

    generator = torch.Generator("cuda").manual_seed(3)

    def draw(x):
        return x + torch.randn(x.shape, device="cuda", generator=generator)

    x = torch.zeros(64, device="cuda")
    target = CudaDevice().verify_target(
        Workload("test", "callable", (WorkloadPart("draw", draw, (x,)),)), CaptureOptions()
    )
    target.session.warm_up(quiet)
    target.capture(quiet)
    (graph,) = target.session.graphs
    drawn = []
    for _ in range(2):
        graph.graph.replay()
        drawn.append(target.session.results[0].clone())
    generator.manual_seed(3)
    graph.graph.replay()
    replayed = target.session.results[0].clone()
    generator.manual_seed(3)
    assert not torch.equal(*drawn)
    assert torch.equal(draw(x), replayed)


def test_a_training_step_with_arguments_equals_one_captured_by_hand():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)

    def train(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    inputs = torch.randn(8, 64, device="cuda"), torch.randn(8, 64, device="cuda")
    captured = capture(train, inputs, {"model": model})
    assert [graph.name for graph in captured.graphs] == ["step"]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        train(*inputs)
    torch.cuda.synchronize()
    by_hand = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(by_hand):
        train(*inputs)
    from cgtool.devices.cuda.driver import cu, node_count

    assert len(captured.graphs[0].nodes) == node_count(cu.CUgraph(by_hand.raw_cuda_graph()))
    places = Places(captured)
    assert all(places.of(node).op and places.of(node).line for node in captured.graphs[0].nodes)


def test_ops_that_run_only_while_capturing_are_named_by_a_second_look():
    x = torch.randn(64, device="cuda")

    def function(x):
        if torch.cuda.is_current_stream_capturing():
            x = x.sin()
        return x.cos()

    captured = capture(function, (x,))
    first = function.__code__.co_firstlineno
    assert lines_of(captured) == [first + 2, first + 3]
    assert ops_of(captured) == ["aten::sin", "aten::cos"]
    assert "ops-unmatched" not in {caveat.code for caveat in captured.caveats}


def test_an_op_that_no_other_run_repeats_keeps_its_line_and_is_reported():
    x = torch.randn(64, device="cuda")
    runs = []

    def function(x):
        runs.append(1)
        if len(runs) == 4:
            x = x.sin()
        return x.cos()

    captured = capture(function, (x,))
    first = function.__code__.co_firstlineno
    assert lines_of(captured) == [first + 3, first + 4]
    assert ops_of(captured) == [None, "aten::cos"]
    assert "ops-unmatched" in {caveat.code for caveat in captured.caveats}


def test_without_cupti_ops_are_recorded_in_the_capture(monkeypatch):
    from cgtool.devices.cuda import cupti

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda()
    x = torch.randn(4, 8, device="cuda")
    usual = capture(model, (x,), {"": model})

    def refuse(_callback):
        raise cupti.CuptiBusy("another tool in this process has subscribed to CUPTI")

    monkeypatch.setattr(cupti, "_subscribed", refuse)
    captured = capture(model, (x,), {"": model})
    assert captured.recorder == "in-capture"
    assert "recorded-in-capture" in {caveat.code for caveat in captured.caveats}
    for graph in (0, 1):
        assert ops_of(captured, graph) == ops_of(usual, graph)
        assert lines_of(captured, graph) == lines_of(usual, graph)


def test_a_profiler_that_holds_cupti_is_survived():
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(64, device="cuda")
    with profile(activities=[ProfilerActivity.CUDA]):
        captured = capture(lambda x: x.relu(), (x,))
    assert ops_of(captured) == ["aten::relu"]


def run_cli(tmp_path, source, *arguments):
    """A failed capture leaves its process unusable: those go through the command line."""
    file = tmp_path / "model.py"
    file.write_text(source)
    return subprocess.run(
        [sys.executable, "-m", "cgtool.cli.app", "capture", f"{file}:build", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )


FAILING = {
    "sync": ("    scale = x.max().item()\n    return x / scale\n", 4, "Unsupported"),
    "unjoined": (
        "    side.wait_stream(torch.cuda.current_stream())\n"
        "    with torch.cuda.stream(side):\n        y = x * 2\n    return x + 1\n",
        None,
        "Unjoined",
    ),
    "pageable": ("    return x + torch.ones(1).to(x.device)\n", 4, None),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failed_capture_names_the_users_line(name, tmp_path):
    body, line, meaning = FAILING[name]
    head = "import torch\nside = torch.cuda.Stream()\ndef function(x):\n"
    tail = "def build(device):\n    return function, (torch.randn(8, device=device),)\n"
    done = run_cli(tmp_path, head + body + tail)
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    if line is not None:
        assert f"model.py:{line}" in done.stderr
    if meaning is not None:
        assert meaning in done.stderr
    assert not list(tmp_path.glob("*.cgt"))


def test_two_streams_have_a_fork_and_a_join(tmp_path):
    # In its own process: torch hands out 32 streams in turn, so in this one two may be the same.
    from cgtool.model.capture_file import read

    done = run_cli(
        tmp_path,
        "import torch\n"
        "side = torch.cuda.Stream()\n"
        "def function(x):\n"
        "    main = torch.cuda.current_stream()\n"
        "    y = x + 1\n"
        "    side.wait_stream(main)\n"
        "    with torch.cuda.stream(side):\n"
        "        right = y * 2\n"
        "    left = y * 3\n"
        "    main.wait_stream(side)\n"
        "    return left + right\n"
        "def build(device):\n"
        "    return function, (torch.randn(8, device=device),)\n",
        "-o",
        "out.cgt",
    )
    assert done.returncode == 0, done.stderr
    graph = read(tmp_path / "out.cgt").graphs[0]
    assert [node.stream for node in graph.nodes] == [0, 1, 0, 0]
    assert {(edge.source, edge.target) for edge in graph.edges} == {(0, 1), (0, 2), (1, 3), (2, 3)}


def test_pools_shared_and_separate():
    generator = torch.nn.Linear(8, 64).cuda()
    critic = torch.nn.Linear(64, 1).cuda()
    from cgtool.devices.cuda.device import CudaDevice

    def run(pool):
        workload = Workload(
            "test",
            "callables",
            (
                WorkloadPart(
                    "g", generator, (torch.randn(4, 8, device="cuda"),), {}, {"": generator}
                ),
                WorkloadPart("c", critic, (torch.randn(4, 64, device="cuda"),), {}, {"": critic}),
            ),
        )
        return CudaDevice().capture(workload, CaptureOptions(pool=pool), quiet)[0]

    shared, separate = run("shared"), run("separate")
    names = ["forward 0", "forward 1", "backward 1", "backward 0"]
    assert [graph.name for graph in shared.graphs] == names
    assert len(shared.memory.pools) == 1
    assert len(separate.memory.pools) == 4


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("return x", "nothing was captured"),
        ("return torch.zeros(3)", "nothing was captured"),
    ],
)
def test_empty_graph(body, word, tmp_path):
    done = run_cli(
        tmp_path,
        f"import torch\ndef f(x):\n    {body}\n"
        "def build(device):\n    return f, (torch.ones(3, device=device),)\n",
    )
    assert done.returncode == 4
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.cgt"))


def test_a_reduction_is_not_said_to_read_freed_memory():
    """Its arguments have words that the warm-up left on the stack."""
    from cgtool.devices.cuda.device import CudaDevice
    from cgtool.jobs.verify.procedure import verify
    from cgtool.model.options import VerifyOptions

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Mish(), torch.nn.Linear(8, 1))
    model.cuda()
    scale = torch.ones(8, device="cuda", requires_grad=True)
    x, y = torch.randn(16, 4, device="cuda"), torch.randn(16, 1, device="cuda")

    def step():
        loss = torch.nn.functional.smooth_l1_loss(model(x), y) + (x.repeat(1, 2) * scale).mean()
        return loss, *torch.autograd.grad(loss, [*model.parameters(), scale])

    workload = Workload("test", "step", (WorkloadPart("step", step),))
    target = CudaDevice().verify_target(workload, CaptureOptions())
    assert not verify(target, VerifyOptions(), quiet).findings


HIDDEN = """\
import torch
held = [torch.randn(4096, device="cuda")]
@torch.library.custom_op("tests_gpu::hidden", mutates_args=())
def hidden(x: torch.Tensor) -> torch.Tensor:
    source = held[0]
    if torch.cuda.is_current_stream_capturing():
        held[0] = torch.zeros_like(source)
    return x + source
def build(device):
    return lambda x: hidden(x) * 2, (torch.ones(4096, device=device),)
"""


def test_what_a_custom_op_reads_by_itself_is_named_where_a_replay_differs(tmp_path):
    (tmp_path / "model.py").write_text(HIDDEN)
    done = run_cgtool("verify", "model.py:build", "--format", "json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["code"] == "input-freed-before-replay"
