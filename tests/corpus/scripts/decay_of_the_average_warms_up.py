"""A moving average of the weights is part of the captured step; its decay grows with the steps."""

# The decay is a Python number: `lerp_` receives it as a kernel argument, which a graph keeps.

import torch
from torch import nn


class Average:
    def __init__(self, model, limit=0.999):
        self.limit = limit
        self.updates = 0
        self.decay = 0.0
        self.weights = [p.detach().clone() for p in model.parameters()]

    def schedule(self):
        self.updates += 1
        self.decay = min(
            self.limit, (1 + self.updates) / (10 + self.updates)
        )  # guilty: replays keep the captured decay

    @torch.no_grad()
    def update(self, model):
        for average, weight in zip(self.weights, model.parameters(), strict=True):
            average.lerp_(weight, 1 - self.decay)  # guilty: the decay is a number of the capture


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
