"""A study swaps the activation of a captured model."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(x) * 2  # guilty: the capture has the activation of its time


block = Block().cuda()
x = torch.full((2,), -1.0, device="cuda")
block(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = block(x)

results = []
for activation in (nn.ReLU(), nn.Identity()):
    block.act = activation  # guilty: replays do not see it
    graph.replay()
    results.append(y.sum().item())
print(results)  # eager: [0.0, -4.0]
