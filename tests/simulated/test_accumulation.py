"""A step that adds to gradients that exist already: they stay where they are, and are added to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.devices.simulated.session import prepare
from cgtool.model.options import CaptureOptions
from cgtool.program.workload import Workload, WorkloadPart
from tests.forked_workers import run_cgtool

STEP = """import torch


def build(device):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model.to(device)
    batches = torch.randn(4, 8, device=device), torch.randn(4, 8, device=device)
    for one in model.parameters():
        one.grad = torch.zeros_like(one)

    def step():
        for one in model.parameters():
            one.grad.zero_()
        for batch in batches:
            model(batch).square().mean().backward()

    return step, ()
"""


def test_check_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(STEP)
    done = run_cgtool("check", "model.py:build", "--device=simulated", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_graph_adds_in_place() -> None:
    names: dict[str, Any] = {}
    exec(STEP, names)
    with SimulatedDevice("test").active() as device:
        step, arguments = names["build"]("cuda")
        workload = Workload("test", "step", (WorkloadPart("step", step, arguments),))
        session = prepare(device, workload, CaptureOptions(), lambda _text: None)
        (captured,) = session.graphs
        calls = [node.call for node in captured.graph.nodes]
        adds = [call for call in calls if "AccumulateGrad" in (call.autograd_node or "")]
        assert [add.name for add in adds] == ["aten::add_.Tensor"] * 8
        model = next(
            cell.cell_contents
            for cell in step.__closure__
            if isinstance(cell.cell_contents, torch.nn.Module)
        )
        replayed = [parameter.grad for parameter in model.parameters()]
        captured.graph.replay()
        first = [gradient.clone() for gradient in replayed]
        captured.graph.replay()
        step()
        assert all(torch.equal(a, b) for a, b in zip(first, replayed, strict=True))
        for parameter, before in zip(model.parameters(), replayed, strict=True):
            assert parameter.grad is before


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "make",
    [
        lambda eye: eye.to_sparse().requires_grad_(),
        lambda eye: eye.to_sparse_csr().requires_grad_(),
        lambda eye: (eye.t(), eye.requires_grad_())[0],
    ],
    ids=["coo", "csr", "a view that requires grad only through its base"],
)
def test_a_leaf_may_have_no_view_or_no_node(make: Any) -> None:
    with SimulatedDevice("test").active() as device:
        weight = make(torch.eye(4, device="cuda"))
        part = WorkloadPart("clone", torch.clone, (weight,))
        workload = Workload("test", "callable", (part,))
        session = prepare(device, workload, CaptureOptions(backward=False), lambda _text: None)
        assert [graph.name for graph in session.graphs] == ["forward"]
