from __future__ import annotations

import torch
from torch import nn


class _Slots(nn.Module):
    """Competing slots, which begin with noise of the device."""

    def __init__(self, slots=3, dim=8, rounds=3):
        super().__init__()
        self.slots, self.rounds, self.dim = slots, rounds, dim
        self.mu = nn.Parameter(torch.randn(1, 1, dim))
        self.log_sigma = nn.Parameter(torch.zeros(1, 1, dim))
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.gru, self.norm = nn.GRUCell(dim, dim), nn.LayerNorm(dim)

    def forward(self, x):
        b = x.shape[0]
        mu, sigma = (t.expand(b, self.slots, -1) for t in (self.mu, self.log_sigma.exp()))
        slots = mu + sigma * torch.randn(mu.shape, device=x.device, dtype=x.dtype)
        k, v = self.k(x), self.v(x)
        for _ in range(self.rounds):
            previous, slots = slots, self.norm(slots)
            attn = torch.einsum("bid,bjd->bij", self.q(slots), k) * self.dim**-0.5
            attn = attn.softmax(dim=1) + 1e-8
            updates = torch.einsum("bjd,bij->bid", v, attn / attn.sum(dim=-1, keepdim=True))
            slots = self.gru(updates.reshape(-1, self.dim), previous.reshape(-1, self.dim))
            slots = slots.reshape(b, -1, self.dim)
        return slots


def slots_that_compete(device):
    return _Slots().to(device), (torch.randn(2, 5, 8, device=device),)
