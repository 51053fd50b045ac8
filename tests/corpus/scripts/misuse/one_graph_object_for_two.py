"""A second capture into a graph that already holds one."""

import torch

x = torch.ones(8, device="cuda")
x * 2
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
graph.replay()
with torch.cuda.graph(graph):  # <- api-order-misuse
    z = x * 3
graph.replay()
print(y[0].item(), z[0].item())  # eager: 2.0 3.0
