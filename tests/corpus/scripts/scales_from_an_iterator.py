"""The captured code takes its scale from an iterator."""

import itertools

import torch

scales = itertools.cycle((1.0, 2.0))
x = torch.ones(2, device="cuda")


def scaled():
    return x * next(scales)  # guilty: one of the scales for all replays


scaled(), scaled()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = scaled()
values = []
for _ in range(2):
    graph.replay()
    values.append(y[0].item())
print(values)  # eager: [1.0, 2.0]
