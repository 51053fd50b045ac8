"""One graph for each part of a tensor, and parts that are the same in each call."""

import heapq
import io

import torch

x = torch.randn(4, 8, device="cuda")
rows = torch.zeros(4, 8, device="cuda")
free = list(range(4))
log = io.StringIO()


def step(x):
    row = heapq.heappop(free)
    rows[row].copy_(x[0])
    heapq.heappush(free, row + 4 if row < 4 else row)
    return rows.sum(0)


def first(x):
    log.write("a")
    length = len(log.getvalue()[:2])
    return x[:, length:] * 2


first(x), first(x)
alone = torch.cuda.CUDAGraph()
with torch.cuda.graph(alone):
    half = first(x)
graphs = []
for _ in range(4):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step(x)
    graphs.append((graph, result))
for n in range(8):
    x.copy_(torch.randn(4, 8))
    graphs[n % 4][0].replay()
    alone.replay()
print([result.sum().item() for _, result in graphs], half.sum().item())
