import torch
from torch import nn


def _net(device):
    return nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 2)).to(device)


def clipping_that_raises(device):
    net = _net(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        nn.utils.clip_grad_norm_(
            net.parameters(), 1.0, error_if_nonfinite=True
        )  # <- nan-guard-sync
        optimizer.step()

    return step
