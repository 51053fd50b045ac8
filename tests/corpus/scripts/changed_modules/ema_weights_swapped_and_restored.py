"""The model has its weights again when the graph is replayed."""

import contextlib

import torch
from torch import nn


@contextlib.contextmanager
def averaged(model, shadow):
    backup = [p.data for p in model.parameters()]
    for p, s in zip(model.parameters(), shadow, strict=True):
        p.data = s
    try:
        yield
    finally:
        for p, b in zip(model.parameters(), backup, strict=True):
            p.data = b


model = nn.Linear(2, 1, bias=False, device="cuda")
nn.init.ones_(model.weight)
shadow = [torch.zeros_like(p) for p in model.parameters()]
x = torch.ones(1, 2, device="cuda")
with torch.no_grad():
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    with averaged(model, shadow):
        print(model(x).item())  # eager: 0.0
    graph.replay()
    print(y.item())  # eager: 2.0
