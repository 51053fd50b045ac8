"""A thread works on the device while the main thread captures."""

import threading

import torch

x = torch.randn(8, device="cuda")
sums = []


def validate():
    sums.append(x.square().sum())  # <- mixed-eager-work-during-capture


thread = threading.Thread(target=validate)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode="thread_local"):
    thread.start()
    y = x * 2
    thread.join()
graph.replay()
