"""`check` on a GPU sees into kernels as far as PyTorch lets it, and reports no error of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cgtool.cli.app import app

pytestmark = pytest.mark.gpu

# The kernels of these ops call themselves with a number that is wrapped in a tensor of the GPU.
# With more than ten test elements, isin() would read their number on the host.
NUMBERS = """
import torch

@torch.library.custom_op("cgtool_test::decay", mutates_args=())
def decay(step: torch.Tensor) -> torch.Tensor:
    return 1 - 0.9 ** step

def build(device):
    def forward(x):
        return decay(x) + 0.9 ** x + torch.isin(2.0, x) + torch.matrix_power(x, 2)
    return forward, (torch.rand(2, 2, device=device),)
"""


def test_numbers_that_kernels_wrap_on_the_device(tmp_path: Path) -> None:
    file = tmp_path / "wrapped_numbers.py"
    file.write_text(NUMBERS)
    checked = CliRunner().invoke(app, ["check", f"{file}:build"])
    assert checked.exit_code == 0, checked.output
