"""Captured code fills a list and reads it; the script empties it after each step."""

import torch

x = torch.ones(4, device="cuda")
losses = []


def block(x):
    y = x * 2
    losses.append(y.mean())
    return y


def step():
    y = block(block(x))
    total = y.sum()
    for each in losses:
        total = total + 0.1 * each
    return total


step()
losses.clear()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = step()

for value in range(3):
    x.fill_(value)
    graph.replay()
    print(y.item())
    losses.clear()
