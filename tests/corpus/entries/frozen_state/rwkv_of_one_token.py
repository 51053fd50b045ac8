from __future__ import annotations

import torch
from torch import nn


class _RWKVState(nn.Module):
    """Time mixing of one token; numerator, denominator and maximum are buffers."""

    def __init__(self, dim=16, batch=2):
        super().__init__()
        self.key, self.value, self.receptance, self.output = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        self.decay, self.first = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
        self.mix = nn.Parameter(torch.full((3, dim), 0.5))
        state = torch.zeros(4, batch, dim)
        state[3] = -1e30
        self.register_buffer("state", state)

    @torch.no_grad()
    def forward(self, x):
        last, num, den, top = self.state.unbind(0)
        mixed = [x * m + last * (1 - m) for m in self.mix]
        k, v, r = self.key(mixed[0]), self.value(mixed[1]), self.receptance(mixed[2]).sigmoid()
        q = torch.maximum(top, self.first + k)
        e1, e2 = torch.exp(top - q), torch.exp(self.first + k - q)
        wkv = (e1 * num + e2 * v) / (e1 * den + e2)
        decayed = top - torch.exp(self.decay)
        q = torch.maximum(decayed, k)
        e1, e2 = torch.exp(decayed - q), torch.exp(k - q)
        self.state.copy_(torch.stack([x, e1 * num + e2 * v, e1 * den + e2, q]))
        return self.output(r * wkv)


def rwkv_of_one_token(device):
    return _RWKVState().to(device), (torch.randn(2, 16, device=device),)
