"""Generators that take turns, each with a result of one graph in a variable."""

import torch

x = torch.zeros(2, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


def stepped(value):
    x.fill_(value)
    graph.replay()
    mine = y.view(2)  # <- output-overwritten-by-next-replay
    yield
    yield mine[0].item()


def launch(value):
    x.fill_(value)
    graph.replay()
    return y  # <- output-overwritten-by-next-replay


first, second = stepped(1.0), stepped(2.0)
next(first)
next(second)
print(next(first), next(second))
a, b = launch(1.0), launch(2.0)
print(a[0].item(), b[0].item())
