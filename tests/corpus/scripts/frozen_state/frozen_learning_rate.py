"""A scheduler moves the float lr of a captured Adam, and that of a captured SGD."""

import torch

w = torch.zeros(2, device="cuda", requires_grad=True)
w.grad = torch.ones_like(w)
adam = torch.optim.Adam([w], lr=0.1, capturable=True)  # <- lr-frozen-despite-capturable
sgd = torch.optim.SGD([w], lr=0.1)  # <- optimizer-without-capture-guard
for optimizer in (adam, sgd):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.0
    graph.replay()
