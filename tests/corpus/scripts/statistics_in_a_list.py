"""A summary of device values is made of a list."""

import torch

x = torch.tensor([1.0, 3.0], device="cuda")


def summary():
    return torch.tensor([x.sum(), x.mean()], device="cuda")  # guilty: reads both on the host


summary()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = summary()
graph.replay()
print(y.tolist())  # eager: [4.0, 2.0]
