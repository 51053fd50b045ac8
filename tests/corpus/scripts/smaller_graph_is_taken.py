"""Graphs for several batch sizes; the batch goes to the nearest one."""

import bisect

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.GELU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.trunk(x))


class Graphs:
    sizes = (1, 2, 4, 8)

    def __init__(self, model):
        self.model = model
        self.x = torch.zeros(max(self.sizes), 6, device="cuda")
        self.actions = torch.zeros(max(self.sizes), 3, device="cuda")
        self.graphs = {}
        for size in reversed(self.sizes):
            model(self.x[:size])
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.actions[:size].copy_(model(self.x[:size]))
            self.graphs[size] = graph

    def __call__(self, x):
        rows = len(x)
        size = self.sizes[bisect.bisect_right(self.sizes, rows) - 1]  # guilty: rounds down
        self.x[:rows].copy_(x)
        self.graphs[size].replay()  # guilty: does not compute the last rows
        return self.actions[:rows].tanh()  # guilty: the last rows are old


with torch.no_grad():
    act = Graphs(Policy().cuda().eval())
    for robots in (8, 4, 7, 3, 1):
        actions = act(torch.randn(robots, 6, device="cuda"))
        print(robots, actions.abs().max().item())
