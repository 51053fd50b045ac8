"""Values of nodes on a GPU: those of PyTorch's ops, and of the kernels of `torch.compile`."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

MODELS = """
import torch
from torch import nn


def mlp(compiled):
    torch.manual_seed(0)
    layers = nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 32)
    model = nn.Sequential(*layers).cuda()
    return torch.compile(model) if compiled else model, (torch.randn(16, 64, device="cuda"),)


def build():
    return mlp(True)


def plain():
    return mlp(False)


def with_nan():
    x = torch.linspace(-1, 1, 4096, device="cuda").reshape(64, 64)

    @torch.compile
    def scores(x):
        y = torch.softmax(x * 2, 1)
        z = torch.nn.functional.gelu(x @ x)
        return y @ z

    @torch.compile
    def logs(x):
        return (x @ x + torch.log(x)).sum()  # <-

    def step():
        return logs(scores(x) - 10.0)

    return step


def large_state():
    state = torch.zeros(1 << 28, device="cuda")

    def step():
        out = state[-8:] * 2
        state.add_(1)
        return out

    return step


def nan_in_place():
    x = torch.linspace(-1, 1, 4096, device="cuda").reshape(64, 64)

    @torch.compile
    def roots(x):
        # The kernel writes over the product; bytes of its own instead would give no NaN.
        return torch.sqrt(x @ x + 1.0)  # <- in place

    def step():
        return roots(x * 4) @ x

    return step
"""


def run(tmp_path: Path, command: str, name: str, *arguments: str):
    file = tmp_path / "models.py"
    file.write_text(MODELS)
    done = subprocess.run(
        [sys.executable, "-m", "cgtool", command, f"{file}:{name}" if command == "debug" else name,
         *arguments],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode in (0, 1), (done.returncode, done.stderr, done.stdout[-3000:])
    return done.returncode, json.loads(done.stdout)


def close(values, tensor) -> bool:
    """Whether these are the figures of a tensor."""
    wide = tensor.double()
    figures = {
        "minimum": wide.min(), "maximum": wide.max(), "mean": wide.mean(), "norm": wide.norm(),
    }  # fmt: skip
    scale = float(wide.abs().max())
    return list(values["shape"]) == list(tensor.shape) and all(
        abs((values.get(name) or 0.0) - float(figure)) <= 1e-5 * max(scale, abs(float(figure)))
        for name, figure in figures.items()
    )


@pytest.mark.parametrize("name", ["build", "plain"])
def test_values_are_those_of_the_function_without_a_graph(tmp_path: Path, name: str) -> None:
    import torch

    _, report = run(tmp_path, "debug", name, "--format", "json", "--values", "a.cgt")
    names: dict[str, object] = {}
    exec(MODELS, names)
    model, (x,) = names[name]()
    out = model(x)
    out.backward(torch.ones_like(out))
    written = [(each, tensor) for each in report["values"] for tensor in each["tensors"]]
    seen = [(each["graph"], each["node"], each["op"], tensor) for each, tensor in written]
    forward = [tensor for graph, *_, tensor in seen if graph == "forward"]
    assert any(close(tensor, out.detach()) for tensor in forward), seen
    backward = [tensor for graph, *_, tensor in seen if graph == "backward"]
    # What PyTorch fills the gradient of the output with is up to cgtool: sizes must agree.
    sizes = {math.prod(tensor["shape"]) for tensor in backward}
    missing = [list(each.shape) for each in model.parameters() if each.numel() not in sizes]
    assert not missing, (missing, sizes)
    _, graphs = run(tmp_path, "dump", "a.cgt", "--json")
    kernels = [node for graph in graphs["graphs"] for node in graph["nodes"] if "kernel" in node]
    triton = [node for node in kernels if node["kernel_mangled"].startswith("triton_")]
    print(name, len(kernels), "kernels,", len(triton), "of Triton,", len(seen), "tensors")
    for each, tensor in written:
        print(each["graph"], each["node"], each["op"], each["module"], each["line"], tensor)
    assert bool(triton) == (name == "build")
    unseen = [(node["id"], node["kernel_mangled"]) for node in triton if not node.get("values")]
    assert not unseen, unseen
    if name == "plain":
        assert {"0", "1", "2", "3"} <= {each["module"] for each in report["values"]}


def test_nodes_wait_for_state_that_takes_long_to_restore(tmp_path: Path) -> None:
    arguments = ("--against", "eager", "--orders", "2", "--format", "json")
    code, report = run(tmp_path, "debug", "large_state", *arguments)
    assert (code, report["findings"]) == (0, []), report["findings"]


@pytest.mark.parametrize(("name", "mark"), [("with_nan", "# <-"), ("nan_in_place", "in place")])
def test_the_first_nan_of_compiled_code_is_named(tmp_path: Path, name: str, mark: str) -> None:
    code, report = run(tmp_path, "debug", name, "--format", "json")
    findings = [each for each in report["findings"] if each["code"] == "first-nan"]
    assert (code, len(findings)) == (1, 1), report
    line = 1 + next(n for n, text in enumerate(MODELS.splitlines()) if text.endswith(mark))
    assert findings[0]["line"] == line, findings[0]
    assert any("kernel triton_" in each for each in findings[0]["evidence"]), findings[0]


def test_compiled_code_is_captured_as_it_is(tmp_path: Path) -> None:
    """Following its memory changes no node."""
    run(tmp_path, "debug", "build", "--format", "json", "--values", "a.cgt")
    done = subprocess.run(
        [sys.executable, "-m", "cgtool", "capture", "models.py:build", "-o", "b.cgt"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, diff = run(tmp_path, "diff", "b.cgt", "a.cgt", "--format", "json")
    nodes = [(graph["a"], graph["b"], graph["change"]) for graph in diff["graphs"]]
    print(diff["summary"], diff["notes"])
    assert all(a == b and change == "same" for a, b, change in nodes), diff["changes"]


def test_two_captures_have_the_same_values(tmp_path: Path) -> None:
    for file in ("a.cgt", "b.cgt"):
        run(tmp_path, "debug", "build", "--format", "json", "--values", file)
    code, diff = run(tmp_path, "diff", "a.cgt", "b.cgt", "--format", "json")
    assert (code, diff["values"]["first"]) == (0, None), diff["values"]["summary"]
