"""Parameters that are deleted or set to None after the capture: their memory may be freed."""

import torch
from torch import nn

deleted, removed = nn.Linear(4, 4).cuda(), nn.Linear(4, 4).cuda()
x = torch.zeros(2, 4, device="cuda")


def step():
    return removed(deleted(x))


with torch.no_grad():
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    for number in range(3):
        if number:
            removed.bias = None  # <- parameter-rebound
            deleted.bias = None
            del deleted.bias  # <- parameter-rebound
        x.copy_(torch.randn(2, 4))
        graph.replay()
print(y.sum().item())
