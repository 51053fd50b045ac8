"""The shape changes for good: the graph is reset and captured again."""

import torch

graph = torch.cuda.CUDAGraph()


def capture(x):
    x.sum()
    with torch.cuda.graph(graph):
        return x.sum()


small = torch.ones(4, device="cuda")
y = capture(small)
graph.replay()
first = y.item()
graph.reset()
large = torch.ones(16, device="cuda")
y = capture(large)
graph.replay()
print(first, y.item())  # eager: 4.0 16.0
