"""Every call of the captured sampler takes its next sigma from an iterator of the closure."""

# `next` runs once while capturing. The replays of the graph all use the third sigma.

import torch
from torch import nn


def make_sampler(model, sigmas):
    remaining = iter(sigmas)
    x = torch.ones(2, 4, device="cuda")

    @torch.no_grad()
    def sample():
        sigma = next(remaining)  # guilty: taken once, in the capture
        x.add_(model(x), alpha=-sigma)  # guilty: the sigma of the capture
        return x

    return sample, x


model = nn.Linear(4, 4).cuda()
sample, x = make_sampler(model, [1.0, 1.0, 0.7, 0.5, 0.3, 0.1])
sample()
sample()
x.fill_(1.0)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    sample()
for _ in range(4):
    graph.replay()
print(x.sum().item())
