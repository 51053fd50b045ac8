"""A contextmanager times the layers of a model, and is left on during the capture."""

# cudaDeviceSynchronize is not permitted while a stream is capturing.

import contextlib
import time

import torch
from torch import nn

times = {}


@contextlib.contextmanager
def timed(name, enabled=True):
    start = time.perf_counter()
    yield
    if enabled:
        torch.cuda.synchronize()  # <- explicit-synchronize
        times[name] = times.get(name, 0.0) + time.perf_counter() - start


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with timed("a"):
            x = self.a(x).relu()
        with timed("b", enabled=False):
            return self.b(x)


block = Block().cuda()
x = torch.ones(2, 8, device="cuda")
with torch.no_grad():
    block(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = block(x)
graph.replay()
print(y.sum().item(), sorted(times))
