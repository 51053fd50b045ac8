"""Optimizers that are made anew and are like the old one, wrap it, or have a graph of their own."""

import torch
from torch import nn

model = nn.Linear(4, 2).cuda()
x = torch.zeros(8, 4, device="cuda")
alike = torch.optim.SGD(model.parameters(), lr=0.1)
shared = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
wrapped = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Wrapper:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def step(self):
        self.optimizer.step()


def train(optimizer):
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def capture(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


class Phase:
    """Each phase has an optimizer and a graph."""

    def __init__(self, rate):
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        self.graph = capture(lambda: train(self.optimizer))


graphs = [capture(lambda: train(alike)), capture(lambda: train(shared))]
graphs += [capture(lambda: train(wrapped))]
phases = [Phase(0.1), Phase(0.01)]
for phase in range(2):
    if phase:
        alike = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(alike, 1)
        state = shared.state
        shared = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        shared.state = state
        wrapped = Wrapper(wrapped)
    for graph in (*graphs, phases[phase].graph):
        x.copy_(torch.randn(8, 4))
        graph.replay()
