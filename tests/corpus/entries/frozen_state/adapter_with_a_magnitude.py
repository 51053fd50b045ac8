from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _Dora(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features) / 4)
        self.b = nn.Parameter(torch.randn(base.out_features, 2) / 4)
        self.magnitude = nn.Parameter(base.weight.norm(dim=1))
        self.scaling = {"default": 2.0}
        self.active = ["default"]

    def forward(self, x):
        weight = self.base.weight
        for name in self.active:
            weight = weight + self.scaling[name] * (self.b @ self.a)
        norm = weight.norm(dim=1).detach()
        return functional.linear(x, weight * (self.magnitude / norm).unsqueeze(1), self.base.bias)


# The adapters and their scales are constants of the host.
def adapter_with_a_magnitude(device):
    return _Dora(nn.Linear(8, 6)).to(device), (torch.randn(4, 8, device=device),)
