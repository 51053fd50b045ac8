import math

import torch
from torch import nn


class Reversal(torch.autograd.Function):
    """The gradient reversal of DANN; its strength grows with the calls."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        # Counts backwards on the host: a replay keeps the strength of the capture.
        Reversal.calls += 1  # <- cpu-state-step-counter
        strength = 2 / (1 + math.exp(-Reversal.calls / 50)) - 1  # <- cpu-state-step-counter
        return -strength * gradient  # <- cpu-state-step-counter


class Domains(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.domain = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.domain(Reversal.apply(torch.tanh(self.features(x))))


def reversal_that_grows(device):
    return Domains().to(device), (torch.randn(5, 4, device=device),)
