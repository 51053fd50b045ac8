"""Autocast without its cache, and a step in the graph."""

import torch
from torch import nn

model = nn.Linear(2, 1, bias=False).cuda()
nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
x = torch.ones(1, 2, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        loss = model(x).float().sum()
    loss.backward()
    optimizer.step()
    return loss


step()
with torch.no_grad():
    model.weight.fill_(1)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for _ in range(2):
    graph.replay()
print(model.weight.tolist(), loss.item())  # eager: [[0.0, 0.0]] 1.0
