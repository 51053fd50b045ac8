"""A table is dropped after the capture."""

from types import SimpleNamespace

import torch

table = SimpleNamespace(rows=torch.ones(8, device="cuda"))
x = torch.ones(8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + table.rows  # <- input-freed-before-replay
graph.replay()
table.rows = None
graph.replay()
print(y.sum().item())
