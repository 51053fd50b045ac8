"""One line fills static tensors of several sizes, each by a broadcast."""

import torch

levels = [torch.zeros(1, 3, size, size, device="cuda") for size in (4, 8, 16)]
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    total = sum(level.sum() for level in levels)
graph.replay()
colour = torch.rand(1, 3, 1, 1, device="cuda")
for level in levels:
    level.copy_(colour)
graph.replay()
print(total.item())
