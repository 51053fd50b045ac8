from __future__ import annotations

import torch
from torch import nn


def _network(inputs, outputs, device):
    layers = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))
    return layers.to(device)


class _GrowingHorizon(nn.Module):
    """A neural differential equation that is trained on longer and longer trajectories."""

    def __init__(self, device, longest=2.0):
        super().__init__()
        self.field = _network(2, 2, device)
        self.horizon, self.longest = 0.1, longest

    def forward(self, state):
        if self.training:
            self.horizon = min(self.horizon * 1.05, self.longest)  # <- cpu-state-step-counter
        step = self.horizon / 8  # <- cpu-state-step-counter
        path = [state]
        for _ in range(8):
            half = state + 0.5 * step * self.field(state)  # <- cpu-state-step-counter
            state = state + step * self.field(half)  # <- cpu-state-step-counter
            path.append(state)
        return torch.stack(path)


def horizon_of_a_neural_equation_grows(device):
    return _GrowingHorizon(device), (torch.randn(4, 2, device=device),)
