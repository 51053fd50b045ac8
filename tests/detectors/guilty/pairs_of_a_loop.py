"""A loop takes two results at a time, which only an iterator holds."""

from itertools import pairwise

import torch

x = torch.zeros(4, device="cuda")
x * 2
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


def run(value):
    x.fill_(value)
    graph.replay()  # <- output-overwritten-by-next-replay
    return y


for before, after in pairwise(map(run, (1, 2, 3))):
    print((before * after).sum().item(), before.mul(before).sum().item())
squares = [(each * each).sum().item() for each in map(run, (1, 2, 3))]
print(squares, [(a + b).sum().item() for a, b in zip(map(run, (1, 2)), (x, x), strict=True)])
