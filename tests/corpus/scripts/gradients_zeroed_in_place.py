"""Gradients are zeroed in place between replays that accumulate."""

import torch

w = torch.ones(2, device="cuda", requires_grad=True)
w.grad = torch.zeros_like(w)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    (w * 2).sum().backward()

norms = []
for _ in range(2):
    w.grad.zero_()
    for _ in range(3):
        graph.replay()
    norms.append(w.grad[0].item())
print(norms)  # eager: [6.0, 6.0]
