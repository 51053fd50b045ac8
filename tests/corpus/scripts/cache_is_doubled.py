"""A KV cache doubles its length when the sequence outgrows it; the decode graph stays."""

import torch


class Cache:
    def __init__(self, length, width):
        self.length = length
        self.k = torch.zeros(length, width, device="cuda")
        self.v = torch.zeros(length, width, device="cuda")

    def reserve(self, length):
        while length > self.length:
            self.k = torch.cat(
                [self.k, torch.zeros_like(self.k)]
            )  # guilty: the graph has the old one
            self.v = torch.cat(
                [self.v, torch.zeros_like(self.v)]
            )  # guilty: the graph has the old one
            self.length *= 2


cache = Cache(4, 8)
position = torch.zeros(1, dtype=torch.long, device="cuda")
hidden = torch.zeros(1, 8, device="cuda")


def decode():
    cache.k.index_copy_(0, position, hidden)
    cache.v.index_copy_(0, position, hidden * 2)
    scores = hidden @ cache.k.t()
    valid = torch.arange(cache.k.shape[0], device="cuda") <= position
    weights = scores.masked_fill(~valid, float("-inf")).softmax(-1)
    return weights @ cache.v


decode()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = decode()

for step in range(4):
    cache.reserve(step * 2 + 1)
    position.fill_(min(step, 3))
    hidden.fill_(float(step + 1))
    graph.replay()
    print(step, out.sum().item())
