"""``cudagraph.recording()`` on a GPU: kernels, copies, streams and programmatic launches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

COMMON = """
import pytest, torch

@pytest.fixture
def captured(cudagraph):
    def capture(step):
        step()
        torch.cuda.synchronize()
        with cudagraph.recording() as run:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                step()
        return run.graph()
    return capture
"""

STREAMS = (
    COMMON
    + """
def step_of(size):
    x, w = torch.randn(size, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    host, side = torch.ones(size, 64).pin_memory(), torch.cuda.Stream()

    def step():
        home = torch.cuda.current_stream()
        side.wait_stream(home)
        with torch.cuda.stream(side):
            right = torch.tanh(x @ w)
        left = torch.sigmoid(x @ w)
        home.wait_stream(side)
        total = left + right
        x.copy_(host, non_blocking=True)
        return total

    return step

def test_kernels_and_streams(captured):
    graph = captured(step_of(64))
    tanh, sigmoid = graph.kernels("*tanh*"), graph.kernels("*sigmoid*")
    assert tanh.count == sigmoid.count == 1
    assert tanh.streams == ("stream 1",) and sigmoid.streams == ("capture stream",)
    assert graph.nodes.streams == ("capture stream", "stream 1")
    assert tanh.parallel_to(sigmoid)
    assert graph.ops("mm", type="kernel", stream=1).before(tanh)
    assert graph.ops("add").after(graph.kernels("*tanh*|*sigmoid*"))
    assert graph.ops("*", line="test_streams.py:23").count == tanh.count + graph.ops("mm")(
        stream=1
    ).count
    assert graph.copies().count == graph.copies(host=True).count == 1
    assert not graph.copies(host=False)
    assert graph.copies().after(graph.kernels())

def test_topology(captured):
    first, second, larger = (captured(step_of(size)).topology() for size in (64, 64, 256))
    assert first == second != larger
    assert "memcpy htod bytes=16384" in first
"""
)

PROGRAMMATIC = (
    COMMON
    + """
import triton
import triton.language as tl

@triton.jit
def increment(x, size: tl.constexpr):
    places = x + tl.arange(0, size)
    tl.store(places, tl.load(places) + 1)

def test_the_second_may_start_early(captured):
    x = torch.zeros(128, device="cuda")

    def step():
        increment[(1,)](x, 128)
        increment[(1,)](x, 128, launch_pdl=True)
        increment[(1,)](x, 128)

    graph = captured(step)
    kernels = graph.kernels("increment")
    assert kernels.count == 3 == graph.depth
    assert [edge.kind for edge in kernels.edges_to(kernels)] == ["programmatic", "full"]
    assert graph.topology().count("(programmatic)") == 1
"""
)


@pytest.mark.parametrize(("name", "tests"), [("streams", STREAMS), ("pdl", PROGRAMMATIC)])
def test_in_a_process_of_its_own(tmp_path: Path, name: str, tests: str) -> None:
    # PyTorch hands out 32 streams in turn: here all are new.
    (tmp_path / f"test_{name}.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--cudagraph-device", "cuda"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
