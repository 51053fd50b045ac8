"""One line captures a graph for each setting: of one object, of one object each, and for each step
of an unrolled loop."""

import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.gain, self.steps, self.seen = gain, 0, []

    def forward(self, x):
        return x * self.gain

    def step(self, x):
        self.steps += 1
        return x * self.steps

    def keep(self, x):
        self.seen.append(x * 2)
        return torch.stack(self.seen).sum(0)


x = torch.ones(4, device="cuda")


def captured(function):
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(x)
    return graph, y


def run(graphs):
    for value in range(3):
        x.fill_(value)
        for graph, y in graphs:
            graph.replay()
            print(y.sum().item())


model = Scaled(1.0)
model(x)
settings = []
for gain in (1.0, 2.0, 4.0):
    model.gain = gain
    settings.append(captured(model))
run(settings)
model.gain = 0.0
run(settings)
models = [Scaled(gain) for gain in (1.0, 2.0)]
run([captured(each) for each in models])
run([captured(model.step) for _ in range(3)])
run([captured(model.keep) for _ in range(3)])
