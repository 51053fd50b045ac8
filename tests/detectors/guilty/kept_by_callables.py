"""Objects that are called, modules and classes keep the outputs of a graph."""

from collections import deque

import torch
from torch import nn


def graphed(function, x):
    function(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(x)
    return graph, y


class Double:
    def __init__(self):
        self.x = torch.zeros(2, device="cuda")
        self.taken, self.recent = [], deque(maxlen=3)
        self.graph, self.y = graphed(lambda x: x * 2, self.x)

    def __call__(self, value):
        self.x.fill_(value)
        self.graph.replay()
        self.taken.append(self.y)  # <- output-overwritten-by-next-replay


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = {}


class Triple(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.zeros(2, device="cuda")
        self.cache = Cache()
        self.graph, self.y = graphed(lambda x: x * 3, self.x)

    def forward(self, value):
        self.x.fill_(value)
        self.graph.replay()
        self.cache.rows[value] = self.y  # <- output-overwritten-by-next-replay


class Half:
    results = []  # noqa: RUF012

    def __init__(self):
        self.x = torch.zeros(2, device="cuda")
        self.graph, self.y = graphed(lambda x: x / 2, self.x)

    def run(self, value):
        self.x.fill_(value)
        self.graph.replay()
        self.results.append(self.y)  # <- output-overwritten-by-next-replay


class Averages:
    def __init__(self):
        self.x = torch.zeros(2, device="cuda")
        self.recent = deque(maxlen=3)
        self.graph, self.y = graphed(lambda x: x + 1, self.x)

    def __call__(self, value):
        self.x.fill_(value)
        self.graph.replay()
        self.recent.append(self.y)  # <- output-overwritten-by-next-replay
        last = list(self.recent)
        return sum(last) / len(last)


double, triple, half, average = Double(), Triple(), Half(), Averages()
for value in range(5):
    double(value)
    triple(value)
    half.run(value)
    print(average(value).tolist())
print([y.tolist() for y in double.taken])
print([y.tolist() for y in triple.cache.rows.values()])
print([y.tolist() for y in half.results])
