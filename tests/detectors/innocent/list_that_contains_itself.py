"""A queue carries a list that contains itself, and a loop reuses a list that holds other things by
then."""

import queue

import torch

x = torch.zeros(4, device="cuda")
items = queue.Queue()
graph = torch.cuda.CUDAGraph()
x * 2
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    y = x * 2

for step in range(3):
    x.fill_(step)
    graph.replay()
    ring: list = [y]
    table = {"ring": ring}
    ring += [ring, table]
    table["itself"] = table
    items.put(ring)
    print(items.get()[0].sum().item(), len(ring))
