"""A parametrization is removed after the capture: its result is a parameter of its own."""

import torch
from torch import nn
from torch.nn.utils import parametrize


class Half(nn.Module):
    def forward(self, weight):
        return weight * 0.5


layer = nn.Linear(8, 8).cuda().requires_grad_(False)
parametrize.register_parametrization(layer, "weight", Half())
x = torch.randn(2, 8, device="cuda")
layer(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = layer(x)
graph.replay()
parametrize.remove_parametrizations(layer, "weight")  # <- parameter-rebound
with torch.no_grad():
    layer.weight.mul_(2)
graph.replay()
graph.replay()
print(y.sum().item())
