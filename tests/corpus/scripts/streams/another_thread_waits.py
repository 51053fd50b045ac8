"""A monitor thread waits for the device while the main thread captures."""

import threading

import torch

x = torch.ones(8, device="cuda")
x * 2
started, stop = threading.Event(), threading.Event()


def monitor():
    started.wait()
    torch.cuda.synchronize()  # <- other-thread-cuda-call
    stop.set()


thread = threading.Thread(target=monitor)
thread.start()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    started.set()
    stop.wait(5)
    y = y + 1
thread.join()
graph.replay()
print(y[0].item())  # eager: 3.0
