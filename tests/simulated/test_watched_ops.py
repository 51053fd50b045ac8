"""Watching and simulating leave the ops as they are: a sample of ``benchmarks/watched_ops.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.torch_compat import op_key

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import databases, watched_ops  # found by the line above


def encoder(device):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, device=device).eval()
    x = torch.randn(2, 6, 16, device=device)

    def run():
        with torch.no_grad():
            layer(x)

    return run


def product(device):
    x = torch.rand(3, 4, device=device, requires_grad=True)
    return lambda: torch.autograd.grad(x.prod(), [x])


def sum_of_gradients(device):
    x = torch.rand(3, 4, device=device, requires_grad=True)
    logits = torch.nn.functional.binary_cross_entropy_with_logits

    def run():
        y = x * 2
        torch.autograd.grad(logits(y, torch.sigmoid(y).detach()) + (y * y).sum(), [x])

    return run


def indexed(device):
    x = torch.arange(12.0, device=device).reshape(3, 4)
    rows = torch.tensor([0, 2], device=device)

    def run():
        x[rows].sum(), x[1:, None], torch.tensor([x[0, 0], x[1, 1]])

    return run


def in_inference_mode(device):
    x, weight = torch.randn(2, 8, device=device), torch.randn(8, 8, device=device)

    def run():
        with torch.inference_mode():
            torch.nn.functional.linear(x, weight).sum().item()
            torch.linalg.inv(torch.eye(3, device=device))

    return run


STEPS = {
    function.__name__: function
    for function in (encoder, product, sum_of_gradients, indexed, in_inference_mode)
}


@pytest.mark.parametrize("name", STEPS)
def test_the_profiler_sees_the_ops_of_a_plain_run(name):
    plain = watched_ops.profiled(STEPS[name]("cpu"))
    with SimulatedDevice("test").active():
        step = STEPS[name]("cuda")
        step()
        simulated = watched_ops.profiled(step)
    assert watched_ops.difference(plain, simulated) is None


def test_an_encoder_layer_in_eval_is_one_op():
    names = []

    def observe(op, args, kwargs, run, caller):
        names.append(op.name())
        return run(*args, **kwargs)

    with SimulatedDevice("test").active():
        step = encoder("cuda")
        with op_key.watch(observe):
            step()
    assert names == ["aten::_transformer_encoder_layer_fwd"]


ENTRIES = [
    ("op", "nn_functional_cross_entropy", 0, True, False),
    ("op", "linalg_inv", 0, False, False),
    ("op", "masked_fill", 0, True, False),
    ("module", "nn.LSTM", 0, True, True),
    ("optim", "Adam", 0, True, False),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry[1])
def test_a_sample_of_pytorchs_databases(entry):
    pytest.importorskip("expecttest")
    for grad_mode in watched_ops.GRAD_MODES if entry[0] == "op" and not entry[3] else ("grad",):
        results = watched_ops.judge(databases.Entry(*entry), grad_mode)
        assert results and not any(results.values()), results
