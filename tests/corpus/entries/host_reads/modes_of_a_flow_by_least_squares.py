from __future__ import annotations

import torch
from torch import nn


def _network(inputs, outputs, device):
    layers = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))
    return layers.to(device)


def modes_of_a_flow_by_least_squares(device):
    """Dynamic mode decomposition: the linear map between two snapshots in a lifted space."""
    lift = _network(6, 5, device).requires_grad_(False)

    def advance(before, after, state):
        first, second = lift(before), lift(after)
        operator = torch.linalg.pinv(first) @ second  # <- linalg-error-check
        return lift(state) @ operator

    snapshots = torch.randn(20, 6, device=device)
    return advance, (snapshots, snapshots.roll(1, 0), torch.randn(3, 6, device=device))
