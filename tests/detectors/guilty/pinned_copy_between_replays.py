"""Results are copied to pinned memory without waiting, and read through NumPy."""

import torch

x = torch.zeros(64, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
host = torch.empty(64, pin_memory=True)
for step in range(3):
    x.fill_(step)
    graph.replay()
    host.copy_(y, non_blocking=True)
    print(host.numpy().sum())  # <- unsynchronized-io

    view = host.numpy()
    print(view.max())  # <- unsynchronized-io
    text = str(host.numpy())  # <- unsynchronized-io
