"""One name stands for one model after the other; each has a runner, which keeps it."""

import torch
from torch import nn

x = torch.ones(2, 4, device="cuda")


class Runner:
    def __init__(self, model):
        self.model = model
        self.graph = torch.cuda.CUDAGraph()
        self.model(x)
        with torch.cuda.graph(self.graph):
            self.y = self.model(x)

    def __call__(self):
        self.graph.replay()
        return self.y.sum().item()


def linear(gain):
    layer = nn.Linear(4, 1, bias=False, device="cuda").requires_grad_(False)
    nn.init.constant_(layer.weight, gain)
    return layer


model = linear(1.0)
first = Runner(model)
model = linear(2.0)
second = Runner(model)
model = linear(3.0)
print(first(), second(), model(x).sum().item())  # eager: 8.0 16.0 24.0
