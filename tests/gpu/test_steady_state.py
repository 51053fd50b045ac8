"""What an engine captures, compiles and allocates after an event on a GPU, against PyTorch's own
counters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cgtool.model import capture_file

pytestmark = pytest.mark.gpu

ENGINE = """
import json
import torch, torch._dynamo.utils
import triton, triton.language as tl
import cgtool

@triton.jit
def add_one(x, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

@torch.compile(mode="reduce-overhead", dynamic=False)
def decode(x):
    return (x @ x.T).relu()

def step(size):
    torch.compiler.cudagraph_mark_step_begin()
    x = torch.ones(size, 64, device="cuda")
    decode(x)
    add_one[(1,)](x, x.numel(), B=64 * size)

def counts():
    frames = torch._dynamo.utils.counters["frames"]["ok"]
    return frames, torch.cuda.memory_stats()["num_device_alloc"]

for _ in range(4):
    step(2)
cgtool.event("ready")
frames, allocations = counts()
for size in (2, 4, 4, 4, 2):
    step(size)
kept = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
after = counts()
print("COUNTS", json.dumps([after[0] - frames, after[1] - allocations]))
"""


def test_what_comes_after_ready_is_what_pytorch_counts(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    cgtool = [sys.executable, "-m", "cgtool"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([*cgtool, "run", "-o", "run.cgt", "engine.py"], **options)
    assert done.returncode == 0, done.stderr
    compiles, allocations = json.loads(done.stdout.rpartition("COUNTS")[2])
    budgets = [f"--max-{kind}-after" for kind in ("captures", "compiles", "allocations")]
    words = [word for budget in budgets for word in (budget, "ready=0")]
    gate = subprocess.run([*cgtool, "gate", "run.cgt", "--format", "json", *words], **options)
    assert gate.returncode == 1
    (target,) = json.loads(gate.stdout)["targets"]
    figures = target["figures"]
    assert figures["captures-after.ready"] == 1
    run = capture_file.read(tmp_path / "run.cgt").ledger
    assert run is not None
    (ready,) = run.events
    names = [each.name for each in run.compiles if each.began_ns > ready.time_ns]
    assert len(names) == figures["compiles-after.ready"]
    # Inductor may tune the kernels of `decode` when they first run.
    assert (names.count("decode"), names.count("add_one")) == (compiles, 1)
    assert figures["allocations-after.ready"] == allocations >= 1
    evidence = [line for verdict in target["verdicts"] for line in verdict["evidence"]]
    assert any("512" in line and "engine.py:32" in line for line in evidence), evidence
