"""The last batch is padded, and a mask says which rows count."""

import torch

x, mask = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
(x * mask).sum()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x * mask).sum()

total = 0.0
for batch in torch.ones(6).split(4):
    mask.zero_()
    mask[: len(batch)] = 1
    x[: len(batch)].copy_(batch)
    graph.replay()
    total += y.item()
print(total)  # eager: 6.0
