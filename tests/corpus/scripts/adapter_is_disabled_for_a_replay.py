"""A context manager switches the adapter off, as PEFT's does: the graph does not notice."""

import contextlib

import torch


class Adapter:
    def __init__(self):
        self.scale = 1.0
        self.delta = torch.ones(4, device="cuda")

    def __call__(self, x):
        return x + self.scale * self.delta

    @contextlib.contextmanager
    def disabled(self):
        scale, self.scale = self.scale, 0.0  # guilty: the same
        try:
            yield
        finally:
            self.scale = scale


adapter = Adapter()
x = torch.zeros(4, device="cuda")
adapter(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = adapter(x)

graph.replay()
adapted = y.clone()
with adapter.disabled():  # guilty: the scale of the capture stays
    graph.replay()
print(adapted.sum().item() - y.sum().item())  # eager: 4.0
