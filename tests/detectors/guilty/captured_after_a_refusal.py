"""A first capture is refused; the second one reads the same inputs, which are alive."""

import torch

x = torch.ones(8, device="cuda")
weight = torch.ones(8, device="cuda")


def step(report):
    y = x * weight
    if report:
        print(y.sum().item())  # <- sync-item
    return y + 1


graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        step(True)
except RuntimeError:
    torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = step(False)
x.fill_(3.0)
graph.replay()
assert y.tolist() == [4.0] * 8
