"""The loop replays in its first iteration, and captures in the second."""

import torch

x = torch.ones(8, device="cuda")
x.sum()
graph = torch.cuda.CUDAGraph()
for iteration in range(3):
    if iteration == 1:
        with torch.cuda.graph(graph):
            y = x.sum()
    graph.replay()  # <- api-order-misuse
print(y.item())  # eager: 8.0
