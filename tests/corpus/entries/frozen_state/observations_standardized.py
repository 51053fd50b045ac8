import torch
from torch import nn


class Standardize(nn.Module):
    """Mean and variance of everything seen, by the formula of Chan; the count is on the device."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(1e-4))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    @torch.no_grad()
    def forward(self, x):
        n, (var, mean) = len(x), torch.var_mean(x, 0, correction=0)
        total, delta = self.count + n, mean - self.mean
        within = self.var * self.count + var * n
        self.var.copy_((within + delta.square() * self.count * n / total) / total)
        self.mean.add_(delta * n / total)
        self.count.copy_(total)
        return (x - self.mean) * (self.var + 1e-8).rsqrt()


def observations_standardized(device):
    return Standardize().to(device), (torch.randn(10, 4, device=device) * 3 + 1,)
