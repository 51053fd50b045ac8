"""Masked assignments of numbers need no host read; lists are used for bookkeeping only."""

import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 8, device="cuda")
names, shapes = [], {}


def step():
    names.append("step")
    hidden = model(x)
    shapes["hidden"] = tuple(hidden.shape)
    filled = hidden.clone()
    filled[filled < 0] = 0.0
    filled[:, 0] = 1
    loss = torch.where(x > 0, filled, -filled).mean()
    for p in model.parameters():
        p.grad = None
    loss.backward()
    for p in model.parameters():
        p.grad[p.grad.isnan()] = 0
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for _ in range(3):
    x.normal_()
    graph.replay()
    print(loss.item())
print(len(names), shapes)
