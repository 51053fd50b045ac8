"""A thread that watches the loss reads it while another capture is under way."""

import threading

import torch

loss = torch.zeros((), device="cuda")
captured = threading.Event()
begun = threading.Event()
seen = []


def watch():
    begun.wait()
    seen.append(loss.item())  # guilty: a synchronizing call during the capture, in global mode
    captured.set()


watcher = threading.Thread(target=watch)
watcher.start()
x = torch.ones(8, device="cuda")
(x * 2).sum()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    begun.set()
    captured.wait(5)
    z = y.sum()
watcher.join()
graph.replay()
print(z.item())
