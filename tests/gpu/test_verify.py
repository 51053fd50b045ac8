"""`verify` on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cgtool.devices.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu

WITH_SCRATCH = """
import torch


@torch.library.custom_op("with_scratch::double", mutates_args=())
def double(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * 2, torch.empty(3, dtype=torch.int64, device=x.device)


@double.register_fake
def _(x):
    return torch.empty_like(x), x.new_empty(3, dtype=torch.int64)


def attention():
    q, k = torch.randn(4, 11, 4, 8, device="cuda"), torch.randn(4, 32, 4, 8, device="cuda")

    def f(q, k):
        return torch.ops.aten._efficient_attention_forward(
            q, k, k, None, None, None, None, None, 0.0, 1
        )

    return f, (q, k)


def custom_op():
    def f(x):
        return double(x)

    return f, (torch.randn(8, device="cuda"),)
"""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("attention", "eager code has it on the host, and no replay writes it"),
        ("custom_op", "neither eager code nor a replay writes this memory"),
    ],
)
def test_results_that_nobody_writes_are_not_compared(tmp_path: Path, name: str, why: str) -> None:
    file = tmp_path / "code.py"
    file.write_text(WITH_SCRATCH)
    command = [sys.executable, "-m", "cgtool", "verify", f"{file}:{name}", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert why in done.stdout
    compared = {each["name"] for each in json.loads(done.stdout)["comparisons"]}
    assert compared


def test_all_free_memory_is_overwritten() -> None:
    sizes = (100, 700_000, 3 << 20, 30 << 20)

    def memory() -> list[torch.Tensor]:
        return [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]

    memory()
    CudaDevice().overwrite_free_memory(0xA5)
    assert [bool((each == 0xA5).all()) for each in memory()] == [True] * len(sizes)
