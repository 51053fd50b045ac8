"""Layers are added progressively, as in progressive growing."""

import torch
from torch import nn


class Progressive(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(16, 16)])

    def grow(self):
        self.blocks.append(nn.Linear(16, 16).cuda())  # <- control-flow-frozen

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


net = Progressive().cuda()
x = torch.randn(4, 16, device="cuda")
with torch.no_grad():
    net(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = net(x)
    graph.replay()
    net.grow()
    graph.replay()
print(y.sum().item())
