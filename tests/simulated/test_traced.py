"""Code that is traced before it is captured: by ``torch.export``, ``make_fx``, or fake tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from cgtool.devices.simulated import redirect
from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.devices.simulated.session import prepare
from cgtool.model.failure import EXIT_UNKNOWN, CgtoolError
from cgtool.model.options import CaptureOptions
from cgtool.program.workload import Workload, WorkloadPart


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        positions = torch.arange(4, device=x.device, dtype=x.dtype)
        return torch.relu(self.linear(x) + positions).to(x.device)


def exported(model, x):
    with torch.no_grad():
        return torch.export.export(model, (x,)).module()


def exported_on_the_host(model, x):
    return torch.export.export(model.cpu(), (x.cpu(),)).module().cuda()


def exported_in_the_step(model, x):
    return lambda x: exported(model, x)(x)


def recorded(model, x):
    with torch.no_grad():
        return make_fx(model)(x)


def names(device, function, x):
    part = WorkloadPart("test", function, (x,))
    workload = Workload("test", "callable", (part,))
    session = prepare(device, workload, CaptureOptions(backward=False), lambda _text: None)
    (graph,) = session.graphs
    return [node.call.name.partition(".")[0] for node in graph.graph.nodes]


@pytest.mark.parametrize("trace", [exported, exported_in_the_step])
def test_a_traced_module_has_the_nodes_of_the_model(trace):
    with SimulatedDevice("test").active() as device:
        model, x = Model().to("cuda"), torch.randn(2, 8, device="cuda")
        assert names(device, trace(model, x), x) == names(device, model, x)


@pytest.mark.parametrize("trace", [exported, recorded])
def test_a_traced_factory_names_the_gpu(trace):
    with SimulatedDevice("test").active():
        graph = trace(Model().to("cuda"), torch.randn(2, 8, device="cuda")).graph
        (arange,) = (node for node in graph.nodes if "arange" in str(node.target))
        assert torch.device(arange.kwargs["device"]).type == "cuda"


def test_the_host_may_trace_with_gradients():
    with SimulatedDevice("test").active():
        x = torch.randn(2, 8, device="cuda")
        model = nn.Linear(8, 4)
        assert exported_on_the_host(model, x)(x).is_cuda


def test_ops_of_fake_tensors_are_not_part_of_a_graph():
    def forward(x):
        with FakeTensorMode() as mode:
            width = (mode.from_tensor(x) @ torch.ones(8, 4, device="cuda")).shape[1]
        return x * width

    with SimulatedDevice("test").active() as device:
        assert names(device, forward, torch.ones(2, 8, device="cuda")) == ["aten::mul"]


def test_a_build_that_cannot_follow_fake_gpu_tensors_says_so(monkeypatch):
    # PyTorch would end the process of the tests.
    monkeypatch.setattr(redirect, "_fake_gpu_tensors_may_require_grad", lambda: False)
    with SimulatedDevice("test").active():
        model, x = Model().to("cuda"), torch.randn(2, 8, device="cuda")
        with pytest.raises(CgtoolError, match="cannot trace a tensor of the GPU") as caught:
            torch.export.export(model, (x,))
    assert caught.value.failure.exit_code == EXIT_UNKNOWN
    assert caught.value.failure.frames[0].file == __file__
