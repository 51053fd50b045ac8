from __future__ import annotations

import torch
from torch import nn


class _ChunkedPrefill(nn.Module):
    def __init__(self, chunk, length, width):
        super().__init__()
        self.project = nn.Linear(width, 2 * width)
        self.register_buffer("keys", torch.zeros(length, width))
        self.register_buffer("values", torch.zeros(length, width))
        self.chunk = chunk
        self.computed = 0

    @torch.no_grad()
    def forward(self, x):
        start, end = self.computed, self.computed + self.chunk  # <- cpu-state-step-counter
        keys, values = self.project(x).chunk(2, -1)
        self.keys[start:end] = keys
        self.values[start:end] = values
        self.computed = end % len(self.keys)  # <- cpu-state-step-counter
        weights = (x @ self.keys.t()).softmax(-1)
        return weights @ self.values


def prompt_is_prefilled_in_chunks(device):
    return _ChunkedPrefill(4, 64, 8).to(device), (torch.randn(4, 8, device=device),)
