"""A monitor thread is paused by a lock while the main thread captures."""

import threading
import time

import torch

x = torch.ones(8, device="cuda")
x * 2
lock, stop = threading.Lock(), threading.Event()


def monitor():
    while not stop.is_set():
        with lock:
            torch.cuda.synchronize()
        time.sleep(0.001)


thread = threading.Thread(target=monitor)
thread.start()
graph = torch.cuda.CUDAGraph()
with lock, torch.cuda.graph(graph):
    y = x * 2
    y = y + 1
stop.set()
thread.join()
graph.replay()
print(y[0].item())  # eager: 3.0
