"""A constant of a class, changed on the class."""

import torch
from torch import nn


class Scaled(nn.Module):
    SCALE = 0.5

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return (x @ self.weight) * self.SCALE


module = Scaled().to("cuda")
x = torch.randn(2, 4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.no_grad():
    module(x)
    with torch.cuda.graph(graph):
        y = module(x)
    Scaled.SCALE = 2.0  # <- python-scalar-frozen
    graph.replay()
print(y)
