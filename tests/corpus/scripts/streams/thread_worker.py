"""A thread that prepares batches on the host while the main thread replays."""

import queue
import threading

import torch

batches = queue.Queue()


def load():
    for step in range(4):
        batches.put(torch.full((8,), float(step)))
    batches.put(None)


x = torch.zeros(8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
loader = threading.Thread(target=load)
loader.start()
total = torch.zeros((), device="cuda")
while (batch := batches.get()) is not None:
    x.copy_(batch)
    graph.replay()
    total += y.sum()
loader.join()
print(total.item())
