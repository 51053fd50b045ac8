# /// script
# dependencies = ["transformer-engine==2.20.2", "einops==0.8.2", "numpy", "packaging"]
# [tool.field]
# package = "transformer-engine"
# version = "2.20.2"
# ///
"""`make_graphed_callables` of Transformer Engine for PyTorch's modules, without FP8.

Its C++ extension cannot be built here. Stand-ins take its place, and the package's `__init__`,
which loads it, is not run; `graph.py` and the Python modules that it imports are the package's own.
"""

import enum
import os

from unused import leave_out, without_init

os.environ["NVTE_PROJECT_BUILDING"] = "1"  # do not look for its libraries
PARTS = "triton", "onnx_extensions", "cpp_extensions", "attention"
leave_out("transformer_engine_torch", *(f"transformer_engine.pytorch.{part}" for part in PARTS))

import transformer_engine_torch

NAMES = "kByte kInt32 kFloat32 kFloat16 kBFloat16 kFloat8E4M3 kFloat8E5M2 kFloat4E2M1"
transformer_engine_torch.DType = enum.IntEnum("DType", NAMES)
without_init("transformer_engine", "pytorch")

import torch
import transformer_engine.pytorch.module  # noqa: F401, before graph.py, as in the package
from torch import nn
from transformer_engine.pytorch.graph import make_graphed_callables

torch.manual_seed(0)
LAYERS, STEPS = 2, 4


def layer():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.0), nn.Linear(32, 16)).cuda()


def sample():
    return torch.randn(8, 16, device="cuda", requires_grad=True)


eager = nn.ModuleList(layer() for _ in range(LAYERS))
graphed = nn.ModuleList(layer() for _ in range(LAYERS))
graphed.load_state_dict(eager.state_dict())
callables = make_graphed_callables(
    tuple(graphed), tuple((sample(),) for _ in range(LAYERS)), num_warmup_iters=3
)
optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (eager, graphed)]
for _ in range(STEPS):
    x = torch.randn(8, 16, device="cuda")
    losses = []
    for layers, optimizer in zip((eager, callables), optimizers, strict=True):
        out = x.clone().requires_grad_()
        for each in layers:
            out = each(out)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses)
    print(float(losses[1]))
