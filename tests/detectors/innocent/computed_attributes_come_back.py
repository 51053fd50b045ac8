"""Tensors that a class computes where they are missing would be the same again, are refilled or
come back, or the graph does not read them from there."""

from functools import cached_property

import torch


class Gain:
    level = 2.0

    def __init__(self):
        self.tables = {}

    def table(self, n):
        if n not in self.tables:
            self.tables[n] = torch.full((n,), 2.0, device="cuda")
        return self.tables[n]

    def reset(self):
        self.unused = torch.full((4,), self.level, device="cuda")

    @cached_property
    def curve(self):
        return torch.full((4,), self.level, device="cuda")

    @cached_property
    def offset(self):
        return torch.full((8,), -self.level, device="cuda")

    @cached_property
    def scale(self):
        return torch.full((4,), self.level, device="cuda")

    @cached_property
    def weight(self):
        return torch.full((4,), self.level, device="cuda")

    def __call__(self, x, scale):
        return x * self.curve + self.offset[:4] - scale + self.weight * self.table(4)


gain = Gain()
x = torch.ones(4, device="cuda")
scale = gain.scale
gain(x, scale)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = gain(x, scale)
kept = [gain.__dict__.pop("offset")]  # made again, it has the same values
for _ in range(2):
    curve, weight = gain.curve, gain.weight
    del gain.curve
    gain.curve = curve
    gain.scale = None
    del gain.scale  # the code goes on with its own
    graph.replay()
    print(y.tolist())
gain.level = 5.0
kept.append(gain.__dict__.pop("weight"))
kept[-1].fill_(5.0)
kept[0].fill_(-5.0)
kept.append(gain.tables.pop(4))  # made again, it has the same values
graph.replay()
print(y.tolist())


class Buffers:
    def __init__(self):
        self.free = {}

    def take(self, n):
        if n not in self.free:
            self.free[n] = torch.zeros(n, device="cuda")
        return self.free[n]


def record(buffers):
    own = buffers.take(4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = own * 2
    return graph, own, out


buffers = Buffers()
graph, own, out = record(buffers)
buffers.free.clear()  # the graph has its own, whatever is taken next
own.fill_(3.0)
graph.replay()
print(out.tolist())
