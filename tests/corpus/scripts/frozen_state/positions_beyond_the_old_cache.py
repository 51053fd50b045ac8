"""The replay raises because it has the old cache: the finding explains the exception."""

import torch

cache = torch.zeros(4, device="cuda")
pos = torch.zeros(1, dtype=torch.long, device="cuda")
one = torch.ones(1, device="cuda")


def step():
    cache[pos] = one
    pos.add_(1)


graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
pos.zero_()
cache = torch.zeros(8, device="cuda")  # <- input-rebound-not-copied
for _ in range(6):
    graph.replay()
print(cache.tolist())
