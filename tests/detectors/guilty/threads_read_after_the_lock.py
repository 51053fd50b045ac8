"""Threads replay one graph in turn, and read its output when the next one has replayed."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

x = torch.zeros(2, device="cuda")
graph = torch.cuda.CUDAGraph()
x * 2
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    y = x * 2
lock, all_have_replayed = threading.Lock(), threading.Barrier(3)


def double(value):
    with lock:
        x.fill_(value)
        graph.replay()
        mine = y  # <- output-overwritten-by-next-replay
    all_have_replayed.wait()
    return mine[0].item()


with ThreadPoolExecutor(3) as pool:
    print(list(pool.map(double, (1.0, 2.0, 3.0))))
