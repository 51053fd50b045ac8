"""A module of TorchScript counts in C++, and its factor hardly differs from call to call."""

import torch
from torch import nn


class Decay(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * (1.0 - 1e-5 * float(self.calls))


x = torch.randn(4, 8, device="cuda")
decay = torch.jit.script(Decay())


def decayed(x):
    return decay(x)  # <- python-scalar-frozen


decayed(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = decayed(x)
for _ in range(3):
    x.normal_()
    graph.replay()
    print(y.sum().item())
