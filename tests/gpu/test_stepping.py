"""Nodes that run alone, on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

STREAMS = """
import torch


def forward_on_two_streams(joined):
    def build():
        weight = torch.randn(64, 64, device="cuda")
        side = torch.cuda.Stream()

        def forward(x):
            current = torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                y = (x @ weight).relu()
            z = x.sin()
            if joined:
                current.wait_stream(side)
            out = z + y
            current.wait_stream(side)
            y.record_stream(current)
            return out

        return forward, (torch.randn(32, 64, device="cuda"),)

    return build


joined, not_joined = forward_on_two_streams(True), forward_on_two_streams(False)
"""


@pytest.mark.parametrize(("name", "found"), [("joined", False), ("not_joined", True)])
def test_a_missing_edge_is_shown_by_another_order(tmp_path: Path, name: str, found: bool) -> None:
    file = tmp_path / "streams.py"
    file.write_text(STREAMS)
    command = [sys.executable, "-m", "cgtool", "verify", f"{file}:{name}", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert any("other orders that the edges allow" in each for each in report["looked_at"])
    races = [each for each in report["findings"] if each["code"] == "stream-race-in-capture"]
    assert len(races) == found, done.stderr
    for race in races:
        assert file.read_text().splitlines()[race["line"] - 1].strip() == "out = z + y"
        assert "another output" in race["reason"]


FAULTS = '''
import torch
import triton
import triton.language as tl
from torch.utils.checkpoint import checkpoint


@triton.jit
def shifted(p, offset, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p + i + tl.load(offset), tl.load(p + i, mask=i < n) + 1.0, mask=i < n)


@triton.jit
def shifted_read(p, out, offset, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(p + i + tl.load(offset), mask=i < n), mask=i < n)


FAR = 1 << 40


def counter():
    """How often it ran, on the device; faults begin after the warm-up and two replays."""
    return torch.zeros((), dtype=torch.long, device="cuda")


def late(calls):
    calls.add_(1)
    return (calls > 5) * FAR


def writes_out_of_bounds():
    p, calls = torch.zeros(1024, device="cuda"), counter()

    def step():
        offset = late(calls)
        shifted[(8,)](p, offset, 1024, BLOCK=128)  # <-
        return p + 1

    return step


def reads_out_of_bounds():
    p, out, calls = torch.zeros(1024, device="cuda"), torch.zeros(1024, device="cuda"), counter()

    def step():
        offset = late(calls)
        shifted_read[(8,)](p, out, offset, 1024, BLOCK=128)  # <-
        return out + 1

    return step


def bad_index():
    table, calls = torch.randn(8, 4, device="cuda"), counter()
    index = torch.zeros(4, dtype=torch.long, device="cuda")

    def step():
        index.add_(late(calls))
        return table[index] * 2  # <-

    return step


def bad_gather():
    table, calls = torch.randn(8, 4, device="cuda"), counter()
    index = torch.zeros(2, 4, dtype=torch.long, device="cuda")

    def step():
        index.add_(late(calls))
        return table.gather(0, index) * 2  # <-

    return step


def bad_class():
    logits, calls = torch.randn(8, 4, device="cuda"), counter()
    target = torch.zeros(8, dtype=torch.long, device="cuda")

    def step():
        target.add_(late(calls))
        return torch.nn.functional.cross_entropy(logits, target)  # <-

    return step


def on_a_side_stream():
    table, calls, side = torch.randn(8, 4, device="cuda"), counter(), torch.cuda.Stream()
    index = torch.zeros(4, dtype=torch.long, device="cuda")

    def step():
        index.add_(late(calls))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            picked = table[index]  # <-
        other = table * 3
        torch.cuda.current_stream().wait_stream(side)
        return picked.sum() + other.sum()

    return step


class Picks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index, calls):
        ctx.save_for_backward(index, calls)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        index, calls = ctx.saved_tensors
        return gradient[index + late(calls)] * 2, None, None  # <-


def in_backward():
    x, calls = torch.randn(4, 4, device="cuda", requires_grad=True), counter()
    index = torch.arange(4, device="cuda")

    def step():
        x.grad = None
        Picks.apply(x, index, calls).square().sum().backward()
        return x.grad

    return step


def compiled():
    table, calls = torch.randn(8, 4, device="cuda"), counter()
    index = torch.zeros(4, dtype=torch.long, device="cuda")

    @torch.compile
    def pick(table, index):
        return table[index].relu() * 2  # <-

    def step():
        index.add_(late(calls))
        return pick(table, index)

    return step
'''
NAMES = [
    line[4:-3] for line in FAULTS.splitlines() if line.startswith("def ") and line.endswith("():")
]


@pytest.mark.parametrize("command", ["debug", "capture"])
@pytest.mark.parametrize("name", [each for each in NAMES if each != "counter"])
def test_the_node_that_fails_is_named(tmp_path: Path, name: str, command: str) -> None:
    file = tmp_path / "faults.py"
    file.write_text(FAULTS)
    arguments = ["--format", "json"]
    arguments += ["-o", str(tmp_path / "a.cgt")] if command == "capture" else []
    done = subprocess.run(
        [sys.executable, "-m", "cgtool", command, f"{file}:{name}", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert done.returncode == 4, done.stderr
    findings = report["findings"] if command == "debug" else report["error"]["findings"]
    found = next(each for each in findings if each["code"] == "node-faults")
    lines = FAULTS[: FAULTS.index(f"def {name}():")].count("\n"), FAULTS.splitlines()
    if name == "in_backward":
        expected = next(n for n, line in enumerate(lines[1], 1) if "gradient[index" in line)
    else:
        expected = next(n for n, line in enumerate(lines[1], 1) if n > lines[0] and "# <-" in line)
    assert found["line"] == expected, (found, done.stderr)
    assert "replay 3" in found["reason"] or name == "compiled"
