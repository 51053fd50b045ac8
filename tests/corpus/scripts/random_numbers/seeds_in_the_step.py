"""The step seeds the generator, so that its mask is always the same."""

import torch

x = torch.ones(64, device="cuda")


def step():
    torch.manual_seed(0)  # <- rng-state-set-in-capture
    return torch.dropout(x, 0.5, True)


step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = step()
graph.replay()
first = y.clone()
graph.replay()
print(torch.equal(first, y))  # eager: True
