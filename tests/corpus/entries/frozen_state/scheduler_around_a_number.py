import torch
from torch import nn


def rows(device, *shape):
    return torch.ones(*(shape or (4, 8)), device=device)


def scheduler_around_a_number(device):
    weight = nn.Parameter(rows(device))
    settings = {"lr": 0.1, "capturable": True}
    optimizer = torch.optim.Adam([weight], **settings)  # <- lr-frozen-despite-capturable
    optimizer.decay = torch.optim.lr_scheduler.StepLR(optimizer, 1000)

    def step():
        optimizer.zero_grad(set_to_none=True)
        weight.square().sum().backward()
        optimizer.step()

    return step
