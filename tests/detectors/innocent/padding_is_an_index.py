"""Rows of padding that are also positions in a table: no other number may stand in for them."""

import torch

table = torch.randn(10, 4, device="cuda")
positions = torch.zeros(8, 1, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = table[positions[:, 0].long()] * 2

for count in (8, 3, 5):
    positions[:count].copy_(torch.arange(count, 0.0, -1)[:, None])
    graph.replay()
    print(out[:count].sum().item())
