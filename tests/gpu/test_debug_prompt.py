"""`cgtool debug -i` through a pipe, on a GPU; a node that hangs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu

COMMAND = [sys.executable, "-m", "cgtool", "debug"]


def run(
    folder: Path, source: str, *arguments: str, commands: tuple[str, ...] = ()
) -> tuple[int, str, str]:
    (folder / "entry.py").write_text(source)
    done = subprocess.run(
        [*COMMAND, "entry.py:build", *arguments], input="".join(f"{each}\n" for each in commands),
        capture_output=True, text=True, cwd=folder, timeout=280, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def results(shown: str) -> list[str]:
    """What `print` printed: lines that begin neither a place nor a source line."""
    return [line for line in shown.splitlines() if line.startswith(("[", "tensor", "torch."))]


MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 128), torch.nn.Linear(128, 32)

    def forward(self, x):
        hidden = self.first(x).tanh()
        order = hidden.sort(dim=-1).values
        return self.last(order).softmax(-1)


def build():
    torch.manual_seed(0)
    return Net().cuda(), (torch.randn(16, 64, device="cuda"),)
"""


def test_expressions_are_what_torch_computes(tmp_path: Path) -> None:
    code, shown, errors = run(
        tmp_path, MODEL, "-i",
        commands=(
            "until tanh", "p in0[0].tolist()", "p self[0].tolist()", "p out[0].tolist()",
            "p out.zero_()[0, :1].tolist()", "p out[0].tolist()", "until sort", "p out[0].tolist()",
            "until *softmax", "p out[0].tolist()", "p out.device, in0.is_cuda", "save out out.pt",
            "info", "where", "c", "restart", "until tanh", "p out[0].tolist()", "p next.in0.shape",
        ),
    )  # fmt: skip
    assert code == 0, errors
    names: dict[str, object] = {}
    exec(MODEL, names)
    model, (x,) = names["build"]()  # type: ignore[operator]
    with torch.no_grad():
        first = model.first(x)
        hidden = first.tanh()
        ordered = hidden.sort(dim=-1).values
        out = model.last(ordered).softmax(-1)
    expected = [first, first, hidden, None, hidden, ordered, out, hidden]
    printed = results(shown)
    for text, tensor in zip(printed, expected, strict=False):
        if tensor is None:
            assert text == "[0.0]", shown
        else:
            assert eval(text) == pytest.approx(tensor[0].tolist(), abs=1e-4), shown
    assert "(device(type='cuda', index=0), True)" in shown, shown
    assert printed[-1].startswith("torch.Size("), shown
    saved = torch.load(tmp_path / "out.pt")["out"]
    assert torch.allclose(saved, out.cpu(), atol=1e-4)
    assert re.search(r"argument \d+: 0x\w+ in ", shown), shown
    assert "-> return self.last(order).softmax(-1)" in shown, shown


COUNTS = """
import torch
import triton
import triton.language as tl

FAR = (1 << 40) + (1 << 20)


@triton.jit
def spins(p, count, LIMIT: tl.constexpr):
    n = tl.load(count)
    while n > LIMIT:
        n = tl.load(count, volatile=True)
    tl.store(p, n)


def build():
    table, p = torch.randn(8, 4, device="cuda"), torch.zeros((), dtype=torch.long, device="cuda")
    index = torch.zeros(4, dtype=torch.long, device="cuda")
    count = torch.zeros((), dtype=torch.long, device="cuda")

    def step():
        count.add_(1)
        BODY

    return step
"""
FAULT = COUNTS.replace("BODY", "return table.index_select(0, index.add_((count > 5) * FAR)) * 2")
HANG = COUNTS.replace("BODY", "spins[(1,)](p, count, 5)\n        return p + 1")
THIRD = ("c", "replay", "c", "replay")
"""Up to the third replay."""


def test_a_fault_ends_it(tmp_path: Path) -> None:
    commands = (*THIRD, "until add_", "p in0.item()", "c", "p 40 + 2")
    code, shown, errors = run(tmp_path, FAULT, "-i", commands=commands)
    assert code == 4, (shown, errors)
    assert "error[node-faults]" in shown, shown
    assert "`aten::index_select`, fails in replay 3" in re.sub(r"\s+", " ", shown), shown
    line = 1 + next(n for n, text in enumerate(FAULT.splitlines()) if "index_select" in text)
    assert f"entry.py:{line} in " in shown, shown
    assert "\n42\n" not in shown
    assert "Traceback" not in errors


def test_an_expression_that_the_device_does_not_survive_says_so(tmp_path: Path) -> None:
    bad = "p out[torch.tensor([1 << 40], device='cuda')].tolist()"
    code, shown, errors = run(tmp_path, MODEL, "-i", commands=("until tanh", bad, "p 40 + 2"))
    assert code == 4, (shown, errors)
    assert "failed on the device" in errors, errors
    assert "\n42\n" not in shown


@pytest.mark.parametrize("interactive", [False, True])
def test_a_timeout_names_the_node_that_hangs(tmp_path: Path, interactive: bool) -> None:
    options = ("-i",) * interactive
    code, shown, errors = run(
        tmp_path, HANG, *options, "--timeout", "40", commands=(*THIRD, "c", "p 40 + 2")
    )
    assert code == 4, (shown, errors)
    line = 1 + next(n for n, text in enumerate(HANG.splitlines()) if "spins[(1,)]" in text)
    assert re.search(rf"phase 'node \d+ of step, `spins`, entry.py:{line}'", errors), errors
