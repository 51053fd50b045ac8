from __future__ import annotations

import torch
from torch import nn


class _GroupedWeights(nn.Module):
    """A linear layer whose weight is kept as nibbles with a scale for each group of inputs."""

    def __init__(self, inputs=32, outputs=16, group=8):
        super().__init__()
        self.group = group
        packed = torch.randint(0, 256, (inputs // 2, outputs), dtype=torch.uint8)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", torch.rand(inputs // group, outputs) * 0.1)
        self.register_buffer("zeros", torch.full((inputs // group, outputs), 8, dtype=torch.uint8))

    def forward(self, x):
        nibbles = torch.stack([self.packed & 15, self.packed >> 4], 1).flatten(0, 1)
        zeros = self.zeros.repeat_interleave(self.group, 0)
        weight = (nibbles.to(x.dtype) - zeros) * self.scales.repeat_interleave(self.group, 0)
        return x @ weight


def nibbles_with_zeros_of_each_group(device):
    return _GroupedWeights().to(device), (torch.randn(3, 32, device=device),)
