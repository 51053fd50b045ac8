"""`cgtool debug` and `verify --orders` on the simulated device."""

from __future__ import annotations

import json

import pytest
import torch

from cgtool.devices.stepping import Stepper
from cgtool.jobs.debug import values_at
from tests.forked_workers import run_cgtool

STREAMS = """
import torch


def build(device):
    side, weight = torch.cuda.Stream(), torch.randn(5, 5, device=device)
    total = torch.zeros(4, 5, device=device)

    def forward(x):
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            y = x @ weight
            noise = torch.rand_like(y)
        z = x.sin()
        {early}
        z = z + y * 2
        {late}
        total.add_(z)
        return z + noise

    return forward, (torch.randn(4, 5, device=device),)
"""
JOIN = "current.wait_stream(side)"
JOINED = STREAMS.format(early=JOIN, late="pass")
NOT_JOINED = STREAMS.format(early="pass", late=JOIN)


def run(tmp_path, source, command, *arguments):
    (tmp_path / "entry.py").write_text(source)
    options = ("--device", "simulated", "--format", "json", *arguments)
    done = run_cgtool(command, "entry.py:build", *options, cwd=tmp_path, timeout=300)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("command", ["debug", "verify"])
def test_a_missing_edge_is_found_by_other_orders(tmp_path, command):
    orders = ("--orders", "8")
    code, report = run(tmp_path, NOT_JOINED, command, *orders)
    (finding,) = (each for each in report["findings"] if each["severity"] == "error")
    assert (code, finding["code"]) == (1, "stream-race-in-capture")
    assert finding["line"] == 1 + NOT_JOINED.splitlines().index("        z = z + y * 2")
    assert "`aten::mm` on stream 1 at entry.py:13" in finding["reason"]
    code, report = run(tmp_path, JOINED, command, *orders)
    assert (code, report["findings"]) == (0, [])
    assert any("other orders" in each for each in report["looked_at"])


def test_replays_are_stepped(tmp_path):
    code, report = run(tmp_path, JOINED, "debug", "--replays", "2")
    assert (code, report["findings"]) == (0, [])
    assert report["looked_at"] == ["7 nodes of forward, 2 replays node by node"]


def test_a_graph_without_branches_has_no_other_order(tmp_path):
    chain = "import torch\n\ndef build(device):\n    return torch.nn.Linear(4, 4).to(device), (\n"
    source = chain + "        torch.ones(2, 4, device=device),)\n"
    _, report = run(tmp_path, source, "verify")
    assert not any("orders" in each for each in report["looked_at"])


MODEL = """
import torch


def build(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return model.to(device), (torch.linspace(-1, 1, 12, device=device).reshape(3, 4),)
"""


def test_values_are_those_of_the_modules_in_eager(tmp_path):
    _, report = run(tmp_path, MODEL, "debug")
    names: dict[str, object] = {}
    exec(MODEL, names)
    model, (x,) = names["build"]("cpu")
    seen = {}
    for name, module in model.named_children():
        module.register_forward_hook(lambda _m, _a, out, name=name: seen.update({name: out}))
    model(x)
    forward = {each["module"]: each for each in report["values"] if each["graph"] == "forward"}
    assert forward.keys() == seen.keys()
    for name, out in seen.items():
        (found,) = forward[name]["tensors"]
        assert found["shape"] == list(out.shape)
        assert found["minimum"] == pytest.approx(out.min().item())
        assert found["maximum"] == pytest.approx(out.max().item())
        assert found["norm"] == pytest.approx(out.norm().item())


NAN = """
import torch


def build(device):
    x = torch.linspace(-1, 1, 8, device=device)
    mask = torch.full((8,), float("-inf"), device=device)

    def step():
        scores = torch.softmax(x + torch.where(x > 0, 0.0, mask), 0)
        logs = (x - 2).log()
        return (scores * logs).sum()

    return step
"""


def test_the_first_nan_is_named_and_masks_are_not(tmp_path):
    code, report = run(tmp_path, NAN, "debug")
    (finding,) = report["findings"]
    assert (code, finding["code"]) == (1, "first-nan")
    assert finding["line"] == 1 + NAN.splitlines().index("        logs = (x - 2).log()")
    assert "8 of 8 numbers" in finding["reason"]
    assert finding["phase"] == "capture step"
    code, report = run(tmp_path, NAN.replace("x - 2", "x + 2"), "debug")
    assert (code, report["findings"]) == (0, [])
    assert any(tensor.get("infinities") for each in report["values"] for tensor in each["tensors"])


class WithoutMemory(Stepper):
    """Two nodes, of which the values of one cannot be read."""

    count = 2

    def _launch(self, node):
        pass

    def clear(self):
        pass

    def written(self, node):
        if node == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [("out", torch.ones(3))]


def test_values_without_memory_for_them_are_left_out():
    stepper = WithoutMemory()
    assert values_at(stepper, 0) is None
    assert [each.name for each in values_at(stepper, 1)] == ["out"]
