"""An output is tested for infinities and NaN, which compares it with itself, after each replay."""

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


def has_nan(tensor):
    return bool((tensor != tensor).any())


for value in range(4):
    x.fill_(value)
    graph.replay()
    if not torch.isfinite(y).all() or torch.isnan(y).any() or has_nan(y):
        break
    print(y.isfinite().sum().item(), torch.nanmean(y).item(), (y == y).float().mean().item())
