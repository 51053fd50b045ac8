from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def _net(device, norm=False):
    torch.manual_seed(0)
    middle = nn.LayerNorm(16) if norm else nn.Identity()
    return nn.Sequential(nn.Linear(8, 16), middle, nn.GELU(), nn.Linear(16, 4)).to(device)


def _batch(device, n=8):
    return torch.randn(n, 8, device=device), torch.randint(4, (n,), device=device)


# A loss that is not finite ends the step.
def skips_losses_that_are_not_finite(device):
    model, (x, y) = _net(device), _batch(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        if not torch.isfinite(loss):  # <- sync-truth-value
            return loss
        loss.backward()
        optimizer.step()
        return loss

    return step
