"""A warm-up factor is computed from a global step."""

import torch

step = 0
x = torch.ones(1, device="cuda")


def scaled():
    return x * min(1.0, step / 10)  # guilty: the factor of the capture


scaled()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = scaled()
for _ in range(10):
    step += 1  # guilty: replays do not see it
    graph.replay()
print(y.item())  # eager: 1.0
