"""The learning rate is a tensor, so that a graph can read it."""

import math

import torch
from torch import nn
from torch.nn import functional


class Schedule:
    """A warm-up, then a cosine."""

    def __init__(self, optimizer, peak, warm_up, total):
        self.optimizer, self.peak = optimizer, peak
        self.warm_up, self.total = warm_up, total

    def at(self, step):
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        progress = (step - self.warm_up) / (self.total - self.warm_up)
        return self.peak * 0.5 * (1 + math.cos(math.pi * progress))

    def apply(self, step):
        for group in self.optimizer.param_groups:
            group["lr"] = torch.tensor(self.at(step), device="cuda")  # guilty: another tensor


forecaster = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 6)).cuda()
optimizer = torch.optim.AdamW(
    forecaster.parameters(), lr=torch.tensor(1e-3, device="cuda"), capturable=True
)
schedule = Schedule(optimizer, 1e-3, 4, 12)
past, future = torch.zeros(8, 24, device="cuda"), torch.zeros(8, 6, device="cuda")


def train():
    optimizer.zero_grad()
    loss = functional.huber_loss(forecaster(past), future)
    loss.backward()
    optimizer.step()
    return loss


stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        train()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train()

series = torch.randn(8, 60).cumsum(1)
for step in range(12):
    schedule.apply(step)
    past.copy_(series[:, step : step + 24])
    future.copy_(series[:, step + 24 : step + 30])
    graph.replay()
print(loss.item())
