import torch
from torch import nn


class ScaledRope(nn.Module):
    def __init__(self, dim=8, trained=32, base=10000.0):
        super().__init__()
        self.dim, self.trained, self.base = dim, trained, base

    def forward(self, q, position):
        longest = position.max() + 1
        base = self.base
        if longest > self.trained:  # <- sync-truth-value
            base = base * (longest / self.trained) ** (self.dim / (self.dim - 2))
        half = torch.arange(0, self.dim, 2, device=q.device) / self.dim
        angle = position[:, None] * (base**-half)
        cos, sin = angle.cos(), angle.sin()
        even, odd = q[..., 0::2], q[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def rope_of_long_contexts(device):
    torch.manual_seed(0)
    return ScaledRope().to(device), (
        torch.randn(6, 8, device=device),
        torch.arange(6, device=device),
    )
