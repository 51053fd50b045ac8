"""A thread works on the host alone while a capture is under way."""

import queue
import threading

import torch

jobs, done = queue.Queue(), []


def work():
    while (job := jobs.get()) is not None:
        done.append(torch.ones(job).sum().item())
        jobs.task_done()


worker = threading.Thread(target=work, daemon=True)
worker.start()
x = torch.ones(8, device="cuda")
(x * 2).sum()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    jobs.put(3)
    jobs.join()
    z = y.sum()
jobs.put(None)
worker.join()
graph.replay()
print(z.item(), done[0])  # eager: 16.0 3.0
