"""What belongs to whom, where it is easily told wrongly: kernels outside any op, blocks whose free
is pending, addresses of memory that died, captures without a warm-up."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cgtool.analysis.places import Places  # noqa: E402
from cgtool.model.file import read  # noqa: E402
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
    from cgtool.cuda import backend
    from cgtool.entry.load import load

    file = tmp_path / "halving_step.py"
    file.write_text(TRITON_STEP)
    workload = load(f"{file}:build", device="cuda")
    captured, _ = backend.capture(workload, CaptureOptions(), quiet)
    places = Places(captured)
    functions = captured.functions
    graph = captured.graphs[0]
    found = [
        (places.of(node), captured.origins[node.origin])
        for node in graph.nodes
        if node.kernel is not None and functions[node.kernel.function].name == "halve"
    ]
    assert [place.line.line for place, _ in found] == [13, 15]
    for place, origin in found:
        assert place.op is None
        assert place.module is None
        assert origin.forward is None
    # Backward of the step still leads to the forward op.
    forward = {place.forward_op for place in map(places.of, graph.nodes)}
    assert {"aten::addmm", "aten::mean"} <= forward
