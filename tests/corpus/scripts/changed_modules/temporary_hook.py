"""A hook for one eager forward, removed before the next replay."""

import torch
from torch import nn

features = []
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
x = torch.randn(2, 8, device="cuda")
with torch.no_grad():
    model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    graph.replay()
    handle = model[0].register_forward_hook(lambda m, a, out: features.append(out.cpu()))
    model(x)
    handle.remove()
    graph.replay()
print(y.sum().item(), len(features))
