"""`cgtool.capture` and `cgtool.verify` of a function at hand, on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import cgtool

pytestmark = pytest.mark.gpu


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).to("cuda")


def test_on_the_device_of_its_tensors(model: nn.Module) -> None:
    x = torch.randn(16, 64, device="cuda")
    parameters = [parameter.detach().clone() for parameter in model.parameters()]
    captured = cgtool.capture(model, x)
    assert not captured.capture.environment.simulated
    assert [graph.name for graph in captured.graphs] == ["forward", "backward"]
    assert {row.type for row in captured.nodes} >= {"kernel"}
    assert {row.module for row in captured.graph("forward").nodes} >= {"0", "1", "2"}
    assert cgtool.verify(model, x).equal
    assert all(map(torch.equal, parameters, model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_step_is_set_back_and_can_be_captured_by_hand(model: nn.Module) -> None:
    x, target = torch.randn(16, 64, device="cuda"), torch.randn(16, 1, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    random = torch.cuda.get_rng_state()
    assert cgtool.verify(step).equal
    assert len(cgtool.capture(step).graph("step").nodes) > 10
    assert not optimizer.state
    assert torch.equal(random, torch.cuda.get_rng_state())
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    graph.replay()
    assert loss.isfinite().item()


def test_a_refused_capture_leaves_the_device_usable(model: nn.Module) -> None:
    x = torch.randn(16, 64, device="cuda")

    def reads(x: torch.Tensor) -> torch.Tensor:
        return model(x) * x.sum().item()

    for call in (cgtool.capture, cgtool.verify):
        with pytest.raises(cgtool.CgtoolError) as raised:
            call(reads, x)
        assert raised.value.failure.findings[0].code == "sync-item"
    assert cgtool.verify(model, x).equal
    assert model(x).sum().isfinite().item()


def test_tensors_of_the_cpu_are_simulated() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    x = torch.randn(16, 64)
    captured = cgtool.capture(model, x)
    assert captured.capture.environment.simulated
    assert cgtool.verify(model, x).equal
    assert (x.device.type, model(x).device.type) == ("cpu", "cpu")
    assert torch.ones(2, device="cuda").is_cuda
