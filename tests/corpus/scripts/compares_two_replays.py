"""The output before and after an update is compared."""

import torch

w = torch.ones(2, device="cuda")
w.sum()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = w.sum()

graph.replay()
before = y  # guilty: the same tensor as afterwards
w.add_(1)
graph.replay()  # guilty: overwrites it
print((y - before).item())  # eager: 2.0
