"""Two tensors exchange their memory after the capture: PyTorch refuses it for a tensor that has a
weak reference, which an observer must not add."""

import torch
from torch import nn

model = nn.Linear(4, 2).cuda()
kept = [nn.Parameter(torch.ones_like(p)) for p in model.parameters()]
x = torch.zeros(3, 4, device="cuda")

with torch.no_grad():
    model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    graph.replay()

for p, other in zip(model.parameters(), kept, strict=True):
    torch.utils.swap_tensors(p, other)  # <- parameter-rebound
graph.replay()
print(y.sum().item())
