"""A callable cache answers repeated requests from a dict in the object."""

import torch
from torch import nn


class Cached:
    def __init__(self):
        self.model = nn.Linear(4, 3).cuda().requires_grad_(False)
        self.x = torch.zeros(4, device="cuda")
        self.known = {}
        self.model(self.x)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = self.model(self.x)

    def __call__(self, key):
        if key not in self.known:
            self.x.fill_(key)
            self.graph.replay()
            self.known[key] = self.y  # guilty: every key has this tensor
        return self.known[key]


torch.manual_seed(0)
cached = Cached()
for key in (1, 2, 3, 1, 2):
    print(key, cached(key).sum().item())
