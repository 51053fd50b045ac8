"""A graph for each value of a Python number, and for each size of a bucket, under one name."""

import torch


def scaled(x, factor):
    return x * factor


full = torch.ones(8, 4, device="cuda")
graphs = {}
for factor in (2.0, 5.0):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = scaled(full, factor) + factor
    graphs[factor] = graph, out
for size in (8, 4, 2):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = full[:size].sum()
    graphs[size] = graph, out
for key in (5.0, 2.0, 4, 8):
    graph, out = graphs[key]
    graph.replay()
    print(key, out.sum().item())
