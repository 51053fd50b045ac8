"""The host iterates over the sigmas and writes each into the tensor that the graph reads."""

import torch
from torch import nn


def make_sampler(model, shape):
    x = torch.ones(shape, device="cuda")
    sigma = torch.zeros((), device="cuda")

    @torch.no_grad()
    def sample():
        x.sub_(model(x) * sigma)
        return x

    return sample, x, sigma


model = nn.Linear(4, 4).cuda()
sample, x, sigma = make_sampler(model, (2, 4))
sample()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    sample()
x.fill_(1.0)
for value in iter([1.0, 0.7, 0.5, 0.3]):
    sigma.fill_(value)
    graph.replay()
print(x.sum().item())
