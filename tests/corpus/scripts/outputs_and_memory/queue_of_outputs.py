"""A producer puts the static output into a queue, a consumer drains it later."""

import queue

import torch

pending = queue.Queue()
x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
for step in range(4):
    x.fill_(step)
    graph.replay()
    pending.put((step, y))  # <- output-overwritten-by-next-replay
while not pending.empty():
    step, value = pending.get()
    print(step, value.sum().item())
