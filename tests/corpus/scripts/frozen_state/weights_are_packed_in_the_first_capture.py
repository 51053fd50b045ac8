"""Weights are packed at their first use: inside the first graph, which has not run yet."""

import torch
from torch import nn


class Packed(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5, requires_grad=False)
        self.codes = self.scale = None

    def pack(self):
        scale = self.weight.abs().amax(1, keepdim=True) / 127  # <- capture-does-not-execute
        self.scale = scale  # <- capture-does-not-execute
        self.codes = (self.weight / scale).round().to(torch.int8)  # <- capture-does-not-execute

    def forward(self, x):
        if self.codes is None:
            self.pack()  # <- capture-does-not-execute
        return x @ (self.codes.to(x.dtype) * self.scale).T  # <- capture-does-not-execute


torch.manual_seed(4)
model = nn.Sequential(Packed(16, 32), nn.ReLU(), Packed(32, 8)).cuda()
torch.randn(8, 16, device="cuda") @ torch.randn(16, 32, device="cuda")  # cuBLAS is loaded
torch.cuda.synchronize()
graphs = {}
for size in (8, 4, 1):
    x = torch.zeros(size, 16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    graphs[size] = graph, x, y

for request in torch.randn(5, 3, 16, device="cuda"):
    graph, x, y = graphs[4]
    x[:3].copy_(request)
    graph.replay()
    print(y[:3].sum().item())
