"""The momentum of a BatchNorm is lowered during training."""

import torch
from torch import nn

norm = nn.BatchNorm1d(4).cuda()
x = torch.full((8, 4), 2.0, device="cuda")
saved = norm.running_mean.clone()
norm(x)
norm.running_mean.copy_(saved)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = norm(x)  # guilty: the momentum of the capture stays

norm.momentum = 0.5  # guilty: replays do not see it
graph.replay()
print(norm.running_mean[0].item())  # eager: 1.0
