"""Batches go through a ring of pinned rows, each of which waits for its own upload."""

import torch

ring = torch.zeros(2, 8, pin_memory=True)
x = torch.zeros(8, device="cuda")
total = torch.zeros(8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    total.add_(x)
uploads = []
for row in ring:
    upload = torch.cuda.CUDAGraph()
    with torch.cuda.graph(upload):
        x.copy_(row, non_blocking=True)
    uploads.append(upload)

events = [torch.cuda.Event() for _ in ring]
for step in range(6):
    row = step % 2
    events[row].synchronize()
    ring[row].copy_(torch.full((8,), float(step)))
    x.copy_(ring[row], non_blocking=True)
    events[row].record()
    graph.replay()
torch.cuda.synchronize()
for step in range(6):
    row = step % 2
    events[row].synchronize()
    ring[row].fill_(step)
    uploads[row].replay()
    events[row].record()
    graph.replay()
print(total.tolist())
