"""Weights are packed by one eager forward, before the graphs of all sizes."""

import torch
from torch import nn


class Packed(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5, requires_grad=False)
        self.codes = self.scale = None

    def forward(self, x):
        if self.codes is None:
            self.scale = self.weight.abs().amax(1, keepdim=True) / 127
            self.codes = (self.weight / self.scale).round().to(torch.int8)
            del self.weight
        return x @ (self.codes.to(x.dtype) * self.scale).T


torch.manual_seed(12)
model = nn.Sequential(Packed(16, 32), nn.ReLU(), Packed(32, 8)).cuda()
inputs = torch.zeros(8, 16, device="cuda")
model(inputs)
torch.cuda.synchronize()

graphs, pool = {}, None
for size in (8, 4, 1):
    model(inputs[:size])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        y = model(inputs[:size])
    pool = graph.pool()
    graphs[size] = graph, y

for count in (3, 1, 7, 4):
    size = min(size for size in graphs if size >= count)
    graph, y = graphs[size]
    inputs[:count] = torch.randn(count, 16, device="cuda")
    inputs[count:].zero_()
    graph.replay()
    print(count, y[:count].sum().item())
