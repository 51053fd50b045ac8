from __future__ import annotations

import math

import torch
from torch import nn


class _RelativePositions(nn.Module):
    """Its table grows with the longest input so far, which warm-up has seen."""

    def __init__(self, dim=16):
        super().__init__()
        self.dim, self.pe = dim, None

    def extend(self, x):
        if self.pe is not None and self.pe.size(1) >= x.size(1) * 2 - 1:
            if self.pe.dtype != x.dtype or self.pe.device != x.device:
                self.pe = self.pe.to(dtype=x.dtype, device=x.device)
            return
        pos = torch.arange(x.size(1) - 1, -x.size(1), -1.0).unsqueeze(1)
        div = torch.exp(torch.arange(0, self.dim, 2).float() * -(math.log(10000.0) / self.dim))
        pe = torch.zeros(x.size(1) * 2 - 1, self.dim)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.pe = pe.unsqueeze(0).to(device=x.device, dtype=x.dtype)

    def forward(self, x):
        self.extend(x)
        middle = self.pe.size(1) // 2
        return self.pe[:, middle - x.size(1) + 1 : middle + x.size(1)]


class _ConformerAttention(nn.Module):
    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.qkv, self.pos = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim, bias=False)
        self.u, self.v = (nn.Parameter(torch.randn(heads, self.width)) for _ in range(2))
        self.positions = _RelativePositions(dim)

    @staticmethod
    def shift(x):
        b, h, t, n = x.size()
        x = torch.cat([x.new_zeros(b, h, t, 1), x], dim=-1).view(b, h, n + 1, t)
        return x[:, :, 1:].view(b, h, t, n)[..., : n // 2 + 1]

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, self.width) for y in self.qkv(x).chunk(3, -1))
        p = self.pos(self.positions(x)).view(1, -1, self.heads, self.width).transpose(1, 2)
        content = (q + self.u).transpose(1, 2) @ k.permute(0, 2, 3, 1)
        place = self.shift((q + self.v).transpose(1, 2) @ p.transpose(-2, -1))
        attn = ((content + place) / math.sqrt(self.width)).softmax(-1)
        return (attn @ v.transpose(1, 2)).transpose(1, 2).reshape(b, t, d)


def conformer_with_relative_positions(device):
    return _ConformerAttention().to(device), (torch.randn(2, 5, 16, device=device),)
