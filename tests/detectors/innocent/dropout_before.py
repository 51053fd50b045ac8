"""Dropout is set before the capture and changed for eager evaluation on another model."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).cuda()
other = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).cuda()
model[1].p = 0.1
x = torch.randn(2, 8, device="cuda")
with torch.no_grad():
    model(x)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = model(x)
    other[1].p = 0.9
    for _ in range(3):
        g.replay()
        other(x)
print(y.sum().item())
