"""Dropout in a graph draws new masks in each replay."""

import torch

x = torch.ones(1000, device="cuda")
torch.dropout(x, 0.5, True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = torch.dropout(x, 0.5, True)

masks = []
for _ in range(3):
    graph.replay()
    masks.append(y.clone())
print(torch.equal(masks[0], masks[1]), torch.equal(masks[1], masks[2]))  # eager: False False
