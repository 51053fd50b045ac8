"""A cached curve is thrown away when the level changes; a history keeps the old ones."""

from functools import cached_property

import torch


class Gain:
    level = 1.0

    @cached_property
    def curve(self):
        return torch.full((4,), self.level, device="cuda")

    def __init__(self):
        self.history = []

    def set(self, level):
        self.level = level
        self.history.append(self.__dict__.pop("curve"))  # guilty: the graph keeps the old curve

    def run(self, x):
        return x * self.curve


gain = Gain()
x = torch.ones(4, device="cuda")
gain.run(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = gain.run(x)
gain.set(3.0)
graph.replay()
print(y.tolist())  # eager: [3.0, 3.0, 3.0, 3.0]
