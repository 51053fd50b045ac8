"""Gradients that exist at the capture are added to, and never zeroed."""

import torch

w = torch.ones(2, device="cuda", requires_grad=True)
w.grad = torch.zeros_like(w)
optimizer = torch.optim.SGD([w], lr=0.1)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    w.square().sum().backward()
for _ in range(3):
    graph.replay()  # <- gradient-accumulation-mismatch
    optimizer.step()
