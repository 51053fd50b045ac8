from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional


def _encoder(device, out=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, out)).to(device)


def _views(device):
    return torch.randn(6, 12, device=device), torch.randn(6, 12, device=device)


class _MomentumContrast(nn.Module):
    """A queue of keys; its pointer is a buffer, which is read in each step."""

    def __init__(self, encoder, k=24, m=0.99, temperature=0.07):
        super().__init__()
        self.q, self.k = encoder, copy.deepcopy(encoder).requires_grad_(False)
        self.size, self.m, self.temperature = k, m, temperature
        self.register_buffer("queue", functional.normalize(torch.randn(8, k), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys):
        n = keys.shape[0]
        ptr = int(self.queue_ptr)  # <- sync-item
        self.queue[:, ptr : ptr + n] = keys.T
        self.queue_ptr[0] = (ptr + n) % self.size

    @torch.no_grad()
    def follow(self):
        for q, k in zip(self.q.parameters(), self.k.parameters(), strict=True):
            k.data.mul_(self.m).add_(q.data, alpha=1 - self.m)

    def forward(self, x, y):
        q = functional.normalize(self.q(x), dim=1)
        with torch.no_grad():
            self.follow()
            k = functional.normalize(self.k(y), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], 1)
        target = torch.zeros(len(q), dtype=torch.long, device=q.device)
        loss = functional.cross_entropy(logits / self.temperature, target)
        self.enqueue(k)
        return loss


def contrast_with_a_queue(device):
    model = _MomentumContrast(_encoder("cpu")).to(device)
    return model, _views(device)
