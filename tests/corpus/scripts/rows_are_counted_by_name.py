"""Captured code counts rows in a `Counter`, under a name that it is passed."""

from collections import Counter

import torch
from torch import nn

calls = Counter()
net = nn.Sequential(nn.Linear(8, 8), nn.GELU()).cuda()
x = torch.randn(3, 8, device="cuda")


def forward(kind):
    calls[kind] += x.shape[0]  # guilty: no replay counts
    return net(x)


with torch.no_grad():
    forward("decode")
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = forward("decode")
for _ in range(7):
    x.normal_()
    g.replay()
print("rows decoded:", calls["decode"], y.mean().item())  # guilty: the rows of the captures
