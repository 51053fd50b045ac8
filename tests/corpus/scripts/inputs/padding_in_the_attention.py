"""Attention over all rows of a batch: padding is among the keys, whatever its size."""

import torch
from torch import nn

SIZES = (8, 4)
attention = nn.MultiheadAttention(16, 2, batch_first=True).cuda().eval()
rows = torch.zeros(8, 16, device="cuda")
largest = torch.zeros(8, device="cuda")


def step(size):
    x = rows[:size]
    mixed, _ = attention(x[None], x[None], x[None], need_weights=False)
    return mixed[0], largest[:size].max()


with torch.inference_mode():
    graphs = {}
    for size in SIZES:
        step(size)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step(size)
        graphs[size] = graph, out
    for count in (8, 3, 6, 4):
        size = min(size for size in SIZES if size >= count)
        rows[:count].copy_(torch.randn(count, 16))  # <- bucket-padding-garbage
        largest[:count].copy_(torch.arange(count, 0, -1.0))  # <- bucket-padding-garbage
        graph, (mixed, most) = graphs[size]
        graph.replay()
        print(mixed[:count].sum().item(), most.item())
