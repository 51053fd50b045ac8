"""A moving average in the captured step, whose decay is a tensor that the host fills each step."""

# `lerp_` with a tensor weight reads it from device memory at every replay; `fill_` writes there.

import torch
from torch import nn


class Average:
    def __init__(self, model, limit=0.999):
        self.limit = limit
        self.updates = 0
        self.rate = torch.ones((), device="cuda")
        self.weights = [p.detach().clone() for p in model.parameters()]

    def schedule(self):
        self.updates += 1
        self.rate.fill_(1 - min(self.limit, (1 + self.updates) / (10 + self.updates)))

    @torch.no_grad()
    def update(self, model):
        for average, weight in zip(self.weights, model.parameters(), strict=True):
            average.lerp_(weight, self.rate)


model = nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
average = Average(model)
batch = torch.ones(8, 4, device="cuda")


def train():
    optimizer.zero_grad(set_to_none=False)
    model(batch).square().mean().backward()
    optimizer.step()
    average.update(model)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    train()

for _ in range(5):
    average.schedule()
    graph.replay()
print(average.weights[0].sum().item())
