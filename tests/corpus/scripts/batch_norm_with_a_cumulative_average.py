"""Batch norm with momentum=None averages with a factor from the host."""

import torch
from torch import nn

m = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=None)).cuda()
x = torch.randn(4, 8, device="cuda")
with torch.no_grad():
    m(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = m(x)  # guilty: reads num_batches_tracked on the host
    graph.replay()
print(y.sum().item())
