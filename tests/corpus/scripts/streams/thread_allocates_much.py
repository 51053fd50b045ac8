"""A thread prepares a large cache while the main thread captures."""

import threading

import torch

x = torch.ones(8, device="cuda")
x * 2
cache = {}
captures = threading.Event()


def prepare():
    captures.wait()
    cache["keys"] = torch.empty(1 << 26, device="cuda")  # <- other-thread-cuda-call


thread = threading.Thread(target=prepare)
thread.start()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    captures.set()
    thread.join()
    y = y + 1
graph.replay()
print(y[0].item())  # eager: 3.0
