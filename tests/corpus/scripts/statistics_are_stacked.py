"""A summary of device values is stacked on the device."""

import torch

x = torch.tensor([1.0, 3.0], device="cuda")
constants = torch.tensor([1.0, 2.0], device="cuda")


def summary():
    return torch.stack([x.sum(), x.mean()]) + constants


summary()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = summary()
graph.replay()
print(y.tolist())  # eager: [5.0, 4.0]
