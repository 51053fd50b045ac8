"""A module counts its forwards and fades a loss term in with that count."""

# `self.calls` is a Python int: the weight is computed once, while capturing.

import torch
from torch import nn


class FadeIn(nn.Module):
    def __init__(self, over=100):
        super().__init__()
        self.over = over
        self.calls = 0

    def forward(self, loss, penalty):
        self.calls += 1  # guilty: not raised by a replay
        weight = min(1.0, self.calls / self.over)
        return loss + weight * penalty  # guilty: the weight of the capture


model = nn.Linear(4, 1).cuda()
fade = FadeIn()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 4, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    y = model(x)
    loss = fade(y.square().mean(), model.weight.abs().sum())
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = step()
for _ in range(20):
    x.normal_()
    graph.replay()
print(loss.item())
