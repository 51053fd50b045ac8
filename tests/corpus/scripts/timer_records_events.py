"""A contextmanager times replays with events, and does nothing while a stream is capturing."""

import contextlib

import torch
from torch import nn

spans = []


@contextlib.contextmanager
def timed(name):
    if torch.cuda.is_current_stream_capturing():
        yield
        return
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    yield
    end.record()
    spans.append((name, start, end))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with timed("a"):
            x = self.a(x).relu()
        with timed("b"):
            return self.b(x)


block = Block().cuda()
x = torch.ones(2, 8, device="cuda")
with torch.no_grad():
    block(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = block(x)
    for _ in range(3):
        with timed("replay"):
            graph.replay()
torch.cuda.synchronize()
print(y.sum().item(), sorted({name for name, start, end in spans if start.elapsed_time(end) >= 0}))
