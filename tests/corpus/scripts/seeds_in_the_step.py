"""The step seeds the generator for reproducibility."""

import torch

x = torch.ones(8, device="cuda")


def step():
    torch.manual_seed(0)  # guilty: a captured generator cannot be seeded
    return torch.dropout(x, 0.5, True)


step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = step()
graph.replay()
