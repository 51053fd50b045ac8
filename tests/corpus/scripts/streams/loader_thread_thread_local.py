"""A loader thread allocates while the main thread captures in thread-local mode."""

import threading

import torch

x = torch.ones(4, device="cuda")
x + 1
batches = []
allocate, allocated = threading.Event(), threading.Event()


def load():
    allocate.wait()
    batches.append(torch.full((4,), 5.0).pin_memory())
    allocated.set()


thread = threading.Thread(target=load)
thread.start()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode="thread_local"):
    y = x + 1
    allocate.set()
    allocated.wait(20)
thread.join()
x.copy_(batches[0], non_blocking=True)
graph.replay()
print(y[0].item())  # eager: 6.0
