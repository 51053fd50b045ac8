"""Weights exchanged through .data."""

import torch

linear = torch.nn.Linear(4, 4).cuda()
x = torch.ones(2, 4, device="cuda")
linear(x)
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    y = linear(x)
linear.weight.data = torch.zeros(4, 4, device="cuda")  # <- parameter-rebound
graph.replay()
print(y.sum().item())
