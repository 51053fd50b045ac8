"""Stochastic depth by Python's generator, drawn once, in the capture."""

import random

import torch

random.seed(3)
x = torch.ones(2, device="cuda")


def block(x):
    keep = random.random()  # guilty: one draw for all replays
    return x + keep * x  # guilty: the number is a constant of the graph


block(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = block(x)
seen = set()
for _ in range(4):
    graph.replay()
    seen.add(y[0].item())
print(len(seen))  # eager: 4
