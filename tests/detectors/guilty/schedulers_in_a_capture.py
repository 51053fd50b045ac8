"""Schedulers of PyTorch in captured code."""

import torch
from torch import nn

x = torch.randn(8, 4, device="cuda")
model = nn.Linear(4, 2).cuda()
parameters = list(model.parameters())
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(torch.optim.SGD(parameters, 0.1), 1000)
optimizer = torch.optim.SGD(parameters, 0.1)
inside = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)


def by_hand():
    gradients = torch.autograd.grad(model(x).square().mean(), parameters)
    (rate,) = schedule.get_last_lr()
    with torch.no_grad():
        torch._foreach_add_(parameters, gradients, alpha=-rate)
    schedule.step()  # <- optimizer-without-capture-guard


def by_the_optimizer():
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    inside.step()  # <- optimizer-without-capture-guard


def captured(step):
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


graphs = [captured(by_hand), captured(by_the_optimizer)]
for _ in range(4):
    x.normal_()
    for graph in graphs:
        graph.replay()
print(parameters[0].sum().item())
