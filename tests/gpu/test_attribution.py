"""Attribution where it is easily wrong: kernels outside any op, blocks whose free is pending,
addresses of freed memory, captures without a warm-up."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cgtool.analysis.graph.places import Places  # noqa: E402
from cgtool.model.capture_file import read  # noqa: E402
from cgtool.model.options import CaptureOptions  # noqa: E402
from tests.gpu.test_capture import quiet, run_cli  # noqa: E402

pytestmark = pytest.mark.gpu


def captured_file(tmp_path, source, *arguments):
    """In a process of its own: streams and pools there are fresh."""
    done = run_cli(tmp_path, source, "-o", "out.cgt", *arguments)
    assert done.returncode == 0, done.stderr
    return read(tmp_path / "out.cgt")


TRITON_STEP = """\
import torch, triton
import triton.language as tl
@triton.jit
def halve(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) / 2, mask=at < n)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 64, device="cuda")
def step():
    optimizer.zero_grad(set_to_none=False)
    loss = model(x).square().mean()
    halve[(1,)](x, x.numel(), BLOCK=512)
    loss.backward()
    halve[(16,)](model.weight.grad, model.weight.grad.numel(), BLOCK=256)
    optimizer.step()
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
def build(device):
    return step
"""


def test_a_hand_written_kernel_beside_backward_has_its_own_line(tmp_path):
    pytest.importorskip("triton")
    # In its own process: where another test has used CUPTI, no node is stamped.
    captured = captured_file(tmp_path, TRITON_STEP)
    assert captured.recorder == "node-callbacks", captured.caveats
    places = Places(captured)
    functions = captured.functions
    graph = captured.graphs[0]
    launches = [
        (places.of(node), captured.origins[node.origin])
        for node in graph.nodes
        if node.kernel is not None and functions[node.kernel.function].name == "halve"
    ]
    assert [place.line.line for place, _ in launches] == [13, 15]
    for place, origin in launches:
        assert place.op is None
        assert place.module is None
        assert origin.forward is None
    # Backward of the step still leads to the forward op.
    forward = {place.forward_op for place in map(places.of, graph.nodes)}
    assert {"aten::addmm", "aten::mean"} <= forward


FORKED = """\
import torch
side = torch.cuda.Stream()
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU()).cuda()
def function(x):
    main = torch.cuda.current_stream()
    y = model(x)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        right = y.sin().cos()
    left = y.exp()
    main.wait_stream(side)
    return left + right
def build(device):
    x = torch.randn(64, 256, device=device)
    # cuBLAS makes its handle now, which it could not while capturing.
    function(x)
    return function, (x,)
"""


def owners(captured):
    """Line and bytes of every allocation of the code's own, in order."""
    places = Places(captured)
    return [
        (place.line.line, allocation.requested_bytes)
        for allocation in captured.memory.allocations
        if allocation.label != "cuBLAS workspace"
        and (place := places.of_origin(allocation.origin)).line
    ]


def test_without_a_warm_up_streams_lines_and_memory_are_the_same(tmp_path):
    usual = captured_file(tmp_path, FORKED, "--no-backward")
    plain = captured_file(tmp_path, FORKED, "--no-backward", "--warmup-iters", "0")
    assert plain.recorder == "in-capture"
    for captured in (usual, plain):
        places = Places(captured)
        by_op = {
            places.of(node).op: (node.stream, places.of(node).line.line)
            for node in captured.graphs[0].nodes
            if node.type == "kernel"
        }
        assert by_op["aten::relu"] == (0, 6)
        assert by_op["aten::sin"] == (1, 9)
        assert by_op["aten::cos"] == (1, 9)
        assert by_op["aten::exp"] == (0, 10)
        assert by_op["aten::add.Tensor"] == (0, 12)
    # What a warm-up allocates once (workspaces, handles) is in the pool without one.
    assert set(owners(usual)) <= set(owners(plain))
    assert {line for line, _ in owners(plain)} == {6, 9, 10, 12}
    # A kernel's output is the block that its own op allocated.
    places = Places(plain)
    sin = next(node for node in plain.graphs[0].nodes if places.of(node).op == "aten::sin")
    lines = {
        places.of_origin(plain.memory.allocations[pointer.allocation].origin).line.line
        for pointer in sin.kernel.pointers
        if pointer.allocation is not None
    }
    assert lines == {6, 9}


RECORDED = """\
import torch
side = torch.cuda.Stream()
def function(x):
    main = torch.cuda.current_stream()
    early = x + 1
    side.wait_stream(main)
    with torch.cuda.stream(side):
        total = early.sum()
        early.record_stream(side)
    main.wait_stream(side)
    out = x @ x
    return out + total
def build(device):
    return function, (torch.randn(1024, 1024, device=device),)
"""


def test_a_block_whose_free_is_pending_is_not_a_workspace(tmp_path):
    captured = captured_file(tmp_path, RECORDED)
    places = Places(captured)
    marked = [
        allocation
        for allocation in captured.memory.allocations
        if places.of_origin(allocation.origin).op == "aten::add.Tensor"
        and places.of_origin(allocation.origin).line.line == 5
    ]
    assert [block.requested_bytes for block in marked] == [4 << 20]
    assert marked[0].label is None
    workspaces = [
        places.of_origin(allocation.origin)
        for allocation in captured.memory.allocations
        if allocation.label == "cuBLAS workspace"
    ]
    assert workspaces
    assert {place.op for place in workspaces} == {"aten::mm"}


REPLACED = """\
import torch
model = torch.nn.Linear(512, 256).cuda()
x = torch.randn(64, 512, device="cuda")
def step():
    model.zero_grad(set_to_none=True)
    if torch.cuda.is_current_stream_capturing():
        x.sin()
    model(x).sum().backward()
def build(device):
    return step
"""


def test_gradients_that_a_second_look_replaces_keep_their_names(tmp_path):
    captured = captured_file(tmp_path, REPLACED)
    labels = {
        allocation.requested_bytes: allocation.label
        for allocation in captured.memory.allocations
        if allocation.freed_at is None and allocation.label is not None
    }
    assert labels[512 * 256 * 4] == "gradient of model.weight"
    assert labels[256 * 4] == "gradient of model.bias"


DEAD_SOURCE = """\
import torch
held = [torch.randn(1 << 22, device="cuda")]
def function(x):
    source = held[0]
    if torch.cuda.is_current_stream_capturing():
        held.clear()
    out = torch.empty_like(x)
    WORK
    return out
def build(device):
    return function, (torch.ones(1 << 22, device=device),)
"""


@pytest.mark.parametrize("work", ["out.copy_(source)", "source.zero_(); out.copy_(x)"])
def test_a_copy_or_a_fill_of_memory_that_died_is_refused_at_its_line(work, tmp_path):
    source = DEAD_SOURCE.replace("WORK", work)
    done = run_cli(tmp_path, source, "--check-input-liveness", "--no-backward")
    assert done.returncode == 4, done.stderr
    assert "freed" in done.stderr
    assert "model.py:8" in done.stderr
    captured = captured_file(tmp_path, source, "--no-backward")
    assert "dead-input" in {caveat.code for caveat in captured.caveats}
    dead = [tensor for tensor in captured.memory.tensors if tensor.kind == "freed"]
    assert len(dead) == 1
    types = {node.type for node in captured.graphs[0].nodes}
    assert types & {"memcpy", "memset"}


def test_arguments_that_cannot_be_read_do_not_pass(monkeypatch):
    from cgtool.devices.cuda import nodes
    from cgtool.devices.cuda.device import CudaDevice
    from cgtool.model.failure import CgtoolError
    from cgtool.program.workload import Workload, WorkloadPart

    x = torch.zeros(64, device="cuda")
    workload = Workload("test", "callable", (WorkloadPart("test", lambda x: x + 1, (x,)),))
    options = CaptureOptions(check_input_liveness=True)
    assert CudaDevice().capture(workload, options, quiet)[0].graphs[0].nodes
    monkeypatch.delattr(nodes.cu, "cuFuncGetParamInfo")
    with pytest.raises(CgtoolError) as raised:
        CudaDevice().capture(workload, options, quiet)
    assert raised.value.failure.exit_code == 5


def test_a_backward_is_timed_behind_its_forward_on_both_sides():
    from cgtool.analysis.timing.bench import bench_report
    from cgtool.devices.cuda import bench
    from cgtool.devices.cuda.device import CudaDevice
    from cgtool.model.options import BenchOptions
    from cgtool.program.workload import Workload, WorkloadPart

    model = torch.nn.Linear(64, 64).cuda()
    part = WorkloadPart("test", model, (torch.randn(8, 64, device="cuda"),), {}, {"": model})
    captured, _ = bench.run(
        CudaDevice(),
        Workload("test", "callable", (part,)),
        CaptureOptions(),
        BenchOptions(rounds=2, min_round_ms=1.0),
        quiet,
    )
    by_phase = {}
    for sample in captured.bench.samples:
        by_phase.setdefault(sample.phase, []).append(sample)
    assert [(sample.behind, sample.iterations) for sample in by_phase["backward"]] == [
        ("forward", 1)
    ] * 2
    assert all(sample.pairs > 1 for sample in by_phase["backward"])
    assert [(sample.behind, sample.pairs) for sample in by_phase["forward"]] == [(None, 1)] * 2
    doubts = " ".join(bench_report(captured).warnings)
    assert "replay backward" in doubts
    assert "us between events" in doubts


SPARSE = """\
import torch
table = torch.nn.Embedding(64, 16, sparse=True).cuda()
index = torch.arange(8, device="cuda")
def step():
    table.zero_grad(set_to_none=True)
    table(index).sum().backward()
def build(device):
    return step
"""


def test_a_sparse_gradient_is_known_by_its_parts(tmp_path):
    captured = captured_file(tmp_path, SPARSE)
    names = {tensor.name for tensor in captured.memory.tensors}
    assert "parameter table.weight" in names
    said = [caveat.text for caveat in captured.caveats if caveat.code == "no-storage"]
    assert any("gradient of table.weight" in name for name in (*names, *said))


ASKS = """\
import torch
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32, 32)
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
    def forward(self, x):
        y = self.linear(x) * self.scale
        if torch.cuda.is_current_stream_capturing():
            y = y.sigmoid() * 2
        return torch.nn.functional.silu(y, inplace=True)
def build(device):
    model = torch.nn.Sequential(Block(), Block()).to(device)
    return model, (torch.randn(4, 32, device=device, requires_grad=True),)
"""


def test_code_that_runs_only_while_capturing_has_its_place_in_backward_too(tmp_path):
    captured = captured_file(tmp_path, ASKS)
    places = Places(captured)
    for graph in captured.graphs:
        for node in graph.nodes:
            place = places.of(node)
            # A number on the device is not read to describe an op's arguments: that ends a capture.
            assert place.op is not None, (graph.name, node.id)
            assert place.module in ("0", "0.linear", "1", "1.linear"), (graph.name, node.id, place)
            if graph.phase == "backward":
                assert place.forward_frame is not None
    ops = {places.of(node).op for graph in captured.graphs for node in graph.nodes}
    assert {"aten::sigmoid", "aten::sigmoid_backward", "aten::silu_backward"} <= ops
    assert "ops-unmatched" not in {caveat.code for caveat in captured.caveats}
