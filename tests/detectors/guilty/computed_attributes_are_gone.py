"""Tensors that a class computes where they are missing are thrown away, and kept elsewhere."""

from functools import cached_property

import torch


class Gain:
    def __init__(self):
        self.level = 1.0
        self.old, self.tables = [], {}

    @cached_property
    def curve(self):
        return torch.full((4,), self.level, device="cuda")

    @cached_property
    def offset(self):
        return torch.full((8,), -self.level, device="cuda")

    def make(self, n):
        return torch.full((n,), self.level, device="cuda")

    def table(self, n):
        if n not in self.tables:
            self.tables[n] = self.make(n)
        return self.tables[n]

    def shift(self):
        if not hasattr(self, "shifted"):
            self.shifted = self.make(4)
        return self.shifted

    def set(self, level):
        self.level = level
        self.old.append(self.__dict__.pop("curve"))  # <- metadata-address-changed
        self.old.append(self.offset)
        del self.offset  # <- metadata-address-changed
        self.old += [*self.tables.values(), self.shifted]
        self.tables.clear()  # <- metadata-address-changed
        del self.shifted  # <- metadata-address-changed

    def __call__(self, x):
        return x * self.curve + self.offset[:4] * self.table(4) - self.shift()


gain = Gain()
x = torch.ones(4, device="cuda")
gain(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = gain(x)
for level in (1.0, 3.0):
    if "curve" in vars(gain):
        gain.set(level)
    gain.level = level
    graph.replay()
    print(y.tolist())
