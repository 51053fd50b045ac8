from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Residual:
    value: torch.Tensor
    slope: torch.Tensor


class Relax(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    @torch.no_grad()
    def forward(self, x):
        last = None
        for _ in range(6):
            x = torch.tanh(self.layer(x))
            now = Residual(x.norm(), x.mean())
            # The __eq__ of a dataclass compares its fields, and wants to know.
            if now == last:  # <- sync-truth-value
                break
            last = now
        return x


def relaxed_until_equal(device):
    return Relax().to(device), (torch.randn(3, 4, device=device),)
