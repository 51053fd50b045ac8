"""A hook of PyTorch's own waits for the device: the line is that of the backward which calls it."""

import torch

w = torch.ones(4, device="cuda", requires_grad=True)
w.register_hook(torch.unique_consecutive)
x = torch.arange(4.0, device="cuda")
(w * x).sum().backward()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    (w * x).sum().backward()  # <- sync-dynamic-shape-op
graph.replay()
