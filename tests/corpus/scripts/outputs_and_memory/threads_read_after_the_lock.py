"""Threads replay one graph in turn, and read its output under the lock, or a copy of it later."""

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
        mine = y
        first = mine[0].item()
        later = mine.clone()
    all_have_replayed.wait()
    with lock:
        x.fill_(-value)
        graph.replay()
        mine = y
        return first, later[0].item(), mine[1].item()


with ThreadPoolExecutor(3) as pool:
    print(list(pool.map(double, (1.0, 2.0, 3.0))))
