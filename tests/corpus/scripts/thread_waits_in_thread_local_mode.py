"""A monitor thread waits for its stream while the main thread captures in thread-local mode."""

import threading

import torch

x = torch.ones(8, device="cuda")
x * 2
own = torch.cuda.Stream()
captures, waited = threading.Event(), threading.Event()


def monitor():
    captures.wait()
    own.synchronize()
    waited.set()


thread = threading.Thread(target=monitor)
thread.start()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode="thread_local"):
    y = x * 2
    captures.set()
    waited.wait(5)
    y = y + 1
thread.join()
graph.replay()
print(y[0].item())  # eager: 3.0
