"""Layers are dropped by a draw of the host's generator."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, survival):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.survival = survival

    def forward(self, x):
        if self.training and torch.rand(1).item() > self.survival:  # guilty: drawn once
            return x
        return x + self.inner(x).relu()


model = nn.Sequential(*(Block(8, 0.5) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(4, 8, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    if loss.requires_grad:
        loss.backward()
        optimizer.step()
    return loss


torch.manual_seed(0)
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
