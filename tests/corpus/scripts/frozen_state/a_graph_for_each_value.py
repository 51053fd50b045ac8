"""Graphs that are captured in calls, each for the number that its call was given."""

import torch
from torch import nn


class Lazy:
    def __init__(self, module):
        self.module, self.graphs = module, {}

    def __call__(self, x, scale):
        if scale not in self.graphs:
            static = x.clone()
            self.module(static)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = self.module(static) * scale
            self.graphs[scale] = graph, static, y
        graph, static, y = self.graphs[scale]
        static.copy_(x)
        graph.replay()
        return y.clone()


lazy = Lazy(nn.Linear(4, 4).cuda().requires_grad_(False))
half = Lazy(lazy.module)
for step in range(4):
    x = torch.randn(2, 4, device="cuda")
    print(lazy(x, 1.0 + step % 2).sum().item(), half(x, 0.5).sum().item())
