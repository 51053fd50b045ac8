"""Dropout is annealed after the step was captured."""

import torch
from torch import nn

model = nn.Sequential(nn.Identity(), nn.Dropout(0.5)).cuda()
x = torch.ones(1000, device="cuda")
model(x)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = model(x)  # guilty: the probability of the capture stays

for epoch in range(3):
    model[1].p = 0.6 + 0.2 * epoch  # guilty: replays do not see it
    graph.replay()
print(y.sum().item())  # eager: 0.0
