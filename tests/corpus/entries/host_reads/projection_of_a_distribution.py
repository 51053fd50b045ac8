from __future__ import annotations

import torch
from torch import nn


# The distribution of returns is projected onto its atoms by sums into rows.
def projection_of_a_distribution(device):
    atoms, low, high = 11, -5.0, 5.0
    support = torch.linspace(low, high, atoms, device=device)
    net = nn.Linear(6, 4 * atoms).to(device)

    @torch.no_grad()
    def project(obs, rewards):
        p = net(obs).view(-1, 4, atoms).softmax(-1)
        best = (p * support).sum(-1).argmax(-1)
        p = p[torch.arange(len(obs), device=obs.device), best]
        place = ((rewards[:, None] + 0.99 * support).clamp(low, high) - low) / (high - low)
        place = (place * (atoms - 1)).clamp(0, atoms - 1)
        lower, upper = place.floor().long(), place.ceil().long()
        lower = torch.where((lower == upper) & (lower > 0), lower - 1, lower)
        upper = torch.where((lower == upper) & (upper < atoms - 1), upper + 1, upper)
        out = torch.zeros_like(p)
        out.scatter_add_(1, lower, p * (upper - place))
        out.scatter_add_(1, upper, p * (place - lower))
        return out

    return project, (torch.randn(5, 6, device=device), torch.randn(5, device=device))
