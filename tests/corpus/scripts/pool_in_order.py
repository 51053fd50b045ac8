"""Graphs that share a pool, replayed in the order of their capture, as in PyTorch's notes."""

import torch

x = torch.ones(1 << 10, device="cuda")
first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
(x * 2).sum()

with torch.cuda.graph(first):
    hidden = (x * 2).add_(1)
with torch.cuda.graph(second, pool=first.pool()):
    out = (hidden * 2).sum()

totals = []
for value in (1.0, 2.0):
    x.fill_(value)
    first.replay()
    second.replay()
    totals.append(out.item() / (1 << 10))
print(totals)  # eager: [6.0, 10.0]
