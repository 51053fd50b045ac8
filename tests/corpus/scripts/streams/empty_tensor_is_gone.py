"""A tensor without elements, dropped after a capture, has no memory that a replay would read."""

import torch

x = torch.ones(2, 3, device="cuda")
nothing = torch.tensor([], device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2 + nothing.sum()
del nothing
for value in range(2):
    x.fill_(value)
    graph.replay()
    print(y.sum().item())
