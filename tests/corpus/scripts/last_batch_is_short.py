"""The last batch is shorter, and the rest of the static input is stale."""

import torch

x = torch.zeros(4, device="cuda")
x.sum()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x.sum()  # guilty: sums stale rows too

total = 0.0
for batch in torch.ones(6).split(4):
    x[: len(batch)].copy_(batch)  # guilty: the rest is of the batch before
    graph.replay()
    total += y.item()
print(total)  # eager: 6.0
