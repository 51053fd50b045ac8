"""`check SCRIPT` on a GPU: the program runs as it does without cgtool."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

COMPILED = """
import torch
from torch._dynamo.utils import counters

captures = 0
begin = torch.cuda.CUDAGraph.capture_begin


def capture_begin(graph, *args, **kwargs):
    global captures
    captures += 1
    return begin(graph, *args, **kwargs)


torch.cuda.CUDAGraph.capture_begin = capture_begin
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)
).cuda()
compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for batch_size in (8, 8, 8, 8, 16, 16, 16, 16):
    torch.compiler.cudagraph_mark_step_begin()
    loss = compiled(torch.randn(batch_size, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
with torch.no_grad():
    for _ in range(4):
        losses.append(compiled(torch.randn(8, 64, device="cuda")).sum().item())
print(losses)
print(captures)
print({name: dict(counters[name]) for name in ("stats", "frames", "graph_break", "recompiles")})
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)


def test_compiled_code_is_captured_as_without_cgtool(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(COMPILED)
    plain = run(str(script))
    checked = run("-m", "cgtool.cli.app", "check", str(script))
    losses, captures, counts = plain.stdout.splitlines()
    assert int(captures) > 1
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # What the script prints goes to standard error, so that reports are alone on standard output.
    assert [line for line in checked.stderr.splitlines() if line in plain.stdout] == [
        losses, captures, counts,
    ], checked.stderr  # fmt: skip
    assert f"{captures} captures" in " ".join(checked.stdout.split())


def findings_of(script: Path, code: str) -> list[dict[str, object]]:
    script.write_text(code)
    checked = run("-m", "cgtool", "check", "--format", "json", str(script))
    assert checked.returncode == 1, checked.stderr
    return [each for each in json.loads(checked.stdout)["findings"] if each["severity"] == "error"]


REFUSED_BACKWARD = """
import torch

weights = torch.randn(6, 5, device="cuda", requires_grad=True)


def step():
    kept = weights.sigmoid()
    left = (1 - kept).cumprod(-1)
    left.sum().backward()


side = torch.cuda.Stream()
with torch.cuda.stream(side):
    step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
"""


def test_a_refused_backward_is_at_the_line_of_its_forward(tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path / "script.py", REFUSED_BACKWARD)
    assert finding["code"] == "hidden-sync-in-stock-module"
    assert finding["line"] == 9
    assert "CumprodBackward0" in str(finding["reason"])
    assert any("script.py:10" in each for each in finding["evidence"])


REPLAYS_INSIDE = """
import torch

x = torch.ones(8, device="cuda")
inner = torch.cuda.CUDAGraph()
with torch.cuda.graph(inner):
    y = x * 2
outer = torch.cuda.CUDAGraph()
with torch.cuda.graph(outer):
    inner.replay()
"""


def test_a_replay_inside_a_capture(tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path / "script.py", REPLAYS_INSIDE)
    assert (finding["code"], finding["line"]) == ("api-order-misuse", 10)


TRACED = """
import torch
from torch import nn

x = torch.randn(4, 8, device="cuda")
layers = nn.Linear(8, 8), nn.GELU(), nn.Tanh(), nn.Linear(8, 8)
model = torch.jit.trace(nn.Sequential(*layers).cuda().requires_grad_(False), x)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(4):
        model(x)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = model(x)
for _ in range(3):
    x.normal_()
    graph.replay()
    print(y.sum().item())
"""


def test_memory_of_fused_kernels_is_that_of_the_graph(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRACED)
    checked = run("-m", "cgtool", "check", "--format", "json", str(script))
    assert checked.returncode == 0, checked.stdout


DEVICE_AS_CONTEXT = """
import torch

x = torch.zeros(3, device="cuda")


def step():
    with torch.device("cuda"):
        weights = torch.tensor([1.0, 2.0, 3.0])
    return x * weights


step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
"""


def test_a_device_as_a_context_is_as_without_cgtool(tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path / "script.py", DEVICE_AS_CONTEXT)
    assert (finding["code"], finding["line"]) == ("h2d-tensor-from-python", 9)


ASKS = """
import torch

x = torch.ones(1024, device="cuda")


def forward():
    if not torch.cuda.is_current_stream_capturing():
        assert x.sum().item() == 1024
    return torch.nn.functional.dropout(x)


torch.manual_seed(0)
forward()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = forward()
for _ in range(4):
    graph.replay()
    print(y.sum().item(), torch.rand(2, device="cuda").tolist())
torch.cuda.memory.empty_cache()
other = torch.cuda.CUDAGraph()
with torch.cuda.graph(other):
    z = torch.rand(2, device="cuda") + 1
other.replay()
print(z.tolist())
"""


def test_code_that_is_refused_when_it_runs_again_harms_nothing(tmp_path: Path) -> None:
    """Run again with the answer that nothing is captured, it waits for the device."""
    script = tmp_path / "script.py"
    script.write_text(ASKS)
    plain = run(str(script))
    assert plain.returncode == 0, plain.stderr
    checked = run("-m", "cgtool", "check", str(script))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "the code of 2 graphs, run again" in " ".join(checked.stdout.split())
    lines = plain.stdout.splitlines()
    assert len(lines) == 5
    assert [line for line in checked.stderr.splitlines() if line in lines] == lines
