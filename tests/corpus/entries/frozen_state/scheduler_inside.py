import torch
from torch import nn


def rows(device, *shape):
    return torch.ones(*(shape or (4, 8)), device=device)


def scheduler_inside(device):
    weight = nn.Parameter(rows(device))
    optimizer = torch.optim.Adam([weight], lr=0.1, capturable=True)
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 1000)

    def step():
        optimizer.zero_grad(set_to_none=True)
        weight.square().sum().backward()
        optimizer.step()
        decay.step()  # <- lr-frozen-despite-capturable

    return step
