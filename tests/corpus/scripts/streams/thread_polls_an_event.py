"""A monitor thread polls an event, and ignores what goes wrong, while the main thread captures."""

import threading

import torch

x = torch.ones(8, device="cuda")
x * 2
uploaded = torch.cuda.Event()
uploaded.record()
captures, polled, ignored = threading.Event(), threading.Event(), []


def monitor():
    captures.wait()
    try:
        uploaded.query()  # <- other-thread-cuda-call
    except RuntimeError as error:
        ignored.append(error)
    polled.set()


thread = threading.Thread(target=monitor)
thread.start()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    captures.set()
    polled.wait()
    y = y + 1
thread.join()
graph.replay()
print(y[0].item())  # eager: 3.0
