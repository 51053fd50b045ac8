"""The captured step adds to gradients that nobody zeroes."""

import torch

w = torch.ones(2, device="cuda", requires_grad=True)
w.grad = torch.zeros_like(w)
optimizer = torch.optim.SGD([w], lr=0.0)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    (w * 2).sum().backward()  # <- input-freed-before-replay

for _ in range(3):
    w.grad = None  # <- input-freed-before-replay
    graph.replay()
grad = w.grad if w.grad is not None else torch.zeros(2)
print(grad.tolist())  # eager: [2.0, 2.0]
