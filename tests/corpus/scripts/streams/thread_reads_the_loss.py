"""A logging thread reads the last loss while the main thread captures."""

import queue
import threading

import torch

x = torch.ones(8, device="cuda")
losses, logged = queue.Queue(), []


def log():
    while (loss := losses.get()) is not None:
        logged.append(loss.item())  # <- other-thread-cuda-call
        losses.task_done()


thread = threading.Thread(target=log, daemon=True)
thread.start()
losses.put((x * 2).sum())
losses.join()
last = (x * 4).sum()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    losses.put(last)
    thread.join(2)
    y = x * 2
graph.replay()
print(y[0].item())  # eager: 2.0
