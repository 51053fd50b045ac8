"""A layer gets a weight norm when its graph has been captured: the graph knows nothing of it."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).cuda()
x = torch.randn(4, 8, device="cuda")
with torch.no_grad():
    model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    torch.nn.utils.parametrizations.weight_norm(model[0])  # <- parameter-rebound
    for _ in range(3):
        model[0].parametrizations.weight.original0.mul_(0.9)
        x.copy_(torch.randn(4, 8))
        graph.replay()
        print(y.sum().item())
