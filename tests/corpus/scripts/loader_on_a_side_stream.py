"""Batches are copied on a side stream, which the replay waits for."""

import torch

x = torch.zeros(4, device="cuda")
x.sum()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x.sum()

loader = torch.cuda.Stream()
total = 0.0
for number in range(3):
    loader.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(loader):
        batch = torch.full((4,), float(number)).pin_memory()
        x.copy_(batch, non_blocking=True)
    torch.cuda.current_stream().wait_stream(loader)
    graph.replay()
    total += y.item()
print(total)  # eager: 12.0
