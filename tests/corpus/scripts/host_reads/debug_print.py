"""A forgotten print in a captured function."""

import torch

x = torch.randn(8, device="cuda")
y = x.softmax(0)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x.softmax(0)
    print(f"largest {y.max()}")  # <- sync-print-or-format
graph.replay()
