import torch
from torch import nn


class CachedDenoiser:
    """Reuses the residual of the blocks while the input has changed little."""

    def __init__(self, device, threshold=0.15):
        self.blocks = nn.Linear(8, 8).to(device)
        self.threshold = threshold
        self.before = torch.ones(2, 8, device=device)
        self.residual = torch.zeros(2, 8, device=device)
        self.distance = torch.zeros((), device=device)

    @torch.no_grad()
    def __call__(self, x):
        change = (x - self.before).abs().mean() / self.before.abs().mean()
        self.distance += change
        self.before.copy_(x)
        if self.distance < self.threshold:  # <- sync-truth-value
            return x + self.residual
        self.distance.zero_()
        self.residual.copy_(self.blocks(x).tanh())
        return x + self.residual


def residual_is_reused_below_a_distance(device):
    torch.manual_seed(0)
    return CachedDenoiser(device), (torch.randn(2, 8, device=device),)
