"""The weights leave the device and come back; then the graph is captured anew."""

import torch
from torch import nn

model = nn.Linear(16, 16).cuda().requires_grad_(False)
host = [p.cpu() for p in model.parameters()]
x = torch.zeros(2, 16, device="cuda")
model(x)


def captured():
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    return graph, y


for _ in range(2):
    graph, y = captured()
    graph.replay()
    print(y.sum().item())
    for p in model.parameters():
        p.untyped_storage().resize_(0)
    for p, kept in zip(model.parameters(), host, strict=True):
        p.untyped_storage().resize_(kept.nbytes)
        p.copy_(kept)
