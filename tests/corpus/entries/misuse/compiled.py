from __future__ import annotations

import torch
from torch import nn


def mlp(device, *more):
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), *more, nn.Linear(16, 8)).to(device)


def rows(device, *shape, grad=False):
    return torch.randn(*(shape or (4, 8)), device=device, requires_grad=grad)


def compiled(device):
    model = torch.compile(mlp(device))

    def run(x):
        return model(x)

    return run, (rows(device),)
