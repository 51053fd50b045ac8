"""A parameter that a method replaces."""

import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, device="cuda"))

    def forward(self, x):
        return x * self.scale

    def load(self, scale):
        self.scale = nn.Parameter(scale)  # <- parameter-rebound


model = Scaled()
x = torch.arange(4.0, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    y = model(x)
graph.replay()
model.load(torch.full((4,), 2.0, device="cuda"))
graph.replay()
print(y.tolist())
