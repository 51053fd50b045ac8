"""Requests of two threads copy into one input, and nothing keeps them apart."""

import threading

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
both_have_copied = threading.Barrier(2)


def serve(value):
    x.fill_(value)
    both_have_copied.wait()
    graph.replay()  # <- unsynchronized-io


threads = [threading.Thread(target=serve, args=(value,)) for value in (1, 2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(y.sum().item())
