"""Statistics and garbage collection between replays."""

import gc

import torch

x = torch.ones(1024, device="cuda")
(x * 2).sum()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x * 2).sum()

peaks = []
for _ in range(3):
    graph.replay()
    peaks.append(torch.cuda.max_memory_allocated())
    gc.collect()
    torch.cuda.empty_cache()
    scratch = [torch.zeros(1024, device="cuda") for _ in range(4)]
    del scratch
print(y.item(), len(peaks))  # eager: 2048.0 3
