"""A moving average of the weights, updated in the graph."""

import torch

w = torch.zeros(1, device="cuda")
average = torch.zeros(1, device="cuda")
average.lerp_(w, 0.5)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    w.add_(1)
    average.lerp_(w, 0.5)

for _ in range(3):
    graph.replay()
print(average.item())  # eager: 2.125
