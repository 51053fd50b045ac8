from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _LazyCodebook(nn.Module):
    """Its codes are the first inputs that it sees."""

    def __init__(self, codes=4, dim=8):
        super().__init__()
        self.register_buffer("initted", torch.Tensor([False]))
        self.register_buffer("embed", torch.zeros(codes, dim))

    def init_embed_(self, data):
        if self.initted:  # <- sync-truth-value
            return
        self.embed.data.copy_(data[: len(self.embed)])
        self.initted.data.copy_(torch.Tensor([True]))

    @torch.no_grad()
    def forward(self, x):
        self.init_embed_(x)
        index = torch.cdist(x, self.embed).argmin(-1)
        return functional.embedding(index, self.embed), index


def codebook_of_the_first_batch(device):
    return _LazyCodebook().to(device), (torch.randn(6, 8, device=device),)
