"""The result is copied to pinned memory in the graph and read without waiting."""

import torch

x = torch.randn(1024, device="cuda")
host = torch.empty(1024, pin_memory=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    host.copy_(y, non_blocking=True)
graph.replay()
print(host.sum().item())  # <- unsynchronized-io
