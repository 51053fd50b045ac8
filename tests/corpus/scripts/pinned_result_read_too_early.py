"""A result is read from pinned memory without a wait."""

import torch

a = torch.eye(64, device="cuda")
host = torch.zeros(1).pin_memory()
b = a @ a
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    b = a
    for _ in range(2000):
        b = b @ a
    host.copy_(b.sum().view(1), non_blocking=True)

graph.replay()
print(host.item())  # eager: 64.0  # guilty: the copy has not happened yet
