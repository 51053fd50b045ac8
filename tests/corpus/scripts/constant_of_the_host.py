"""A constant 0-dim tensor of the host is an operand, and nothing changes it."""

import math

import torch

x = torch.ones(2, device="cuda")
scale = torch.tensor(math.sqrt(4.0))


def scaled():
    return x / scale * torch.tensor(3.0)


scaled()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = scaled()
x.fill_(2)
graph.replay()
print(y.tolist())  # eager: [3.0, 3.0]
