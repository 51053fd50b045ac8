"""A result is read from pinned memory after an event."""

import torch

x = torch.zeros(1, device="cuda")
host = torch.zeros(1).pin_memory()
x + 1
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    host.copy_(x + 1, non_blocking=True)

done = torch.cuda.Event()
for number in range(3):
    x.fill_(number)
    graph.replay()
    done.record()
    done.synchronize()
print(host.item())  # eager: 3.0
