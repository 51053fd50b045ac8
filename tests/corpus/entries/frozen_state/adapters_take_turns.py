import itertools

import torch
from torch import nn


class RotatingAdapters(nn.Module):
    """A mixture of low-rank adapters, one for each call."""

    def __init__(self, width=16, rank=2, count=3):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.a = nn.ParameterList(nn.Parameter(torch.randn(rank, width)) for _ in range(count))
        self.b = nn.ParameterList(nn.Parameter(torch.randn(width, rank)) for _ in range(count))
        self.turns = itertools.cycle(range(count))

    def forward(self, x):
        turn = next(self.turns)  # <- metadata-address-changed
        return self.base(x) + x @ self.a[turn].mT @ self.b[turn].mT  # <- metadata-address-changed


def adapters_take_turns(device):
    torch.manual_seed(0)
    return RotatingAdapters().to(device).requires_grad_(False), (torch.randn(4, 16, device=device),)
