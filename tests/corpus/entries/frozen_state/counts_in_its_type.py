from __future__ import annotations

import torch
from torch import nn


class _CountsInItsType(nn.Module):
    steps = 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        type(self).steps += 1  # <- cpu-state-step-counter
        return self.layer(x) * 0.5 ** (type(self).steps // 1000)  # <- cpu-state-step-counter


def counts_in_its_type(device):
    return _CountsInItsType().to(device), (torch.randn(2, 4, device=device),)
