"""Outputs are kept by the cache of a function."""

import functools

import torch

x = torch.zeros(2, 3, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        x * 2
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


@functools.lru_cache(maxsize=4)
def doubled(value):
    x.fill_(value)
    graph.replay()
    return y


for value in (1.0, 2.0, 1.0):
    print(doubled(value).tolist())  # <- output-overwritten-by-next-replay
