"""A batch of one row is copied into an input of four."""

import torch

x = torch.zeros(4, 2, device="cuda")
x.sum()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x.sum()

x.copy_(torch.ones(1, 2))  # <- replay-with-other-shape
graph.replay()
print(y.item())  # eager: 2.0
