from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def lambda_rank_of_listed_pairs(device):
    scorer = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)

    def loss(features, relevance):
        scores = scorer(features).squeeze(-1)
        better = relevance[:, None] > relevance[None, :]
        high, low = torch.where(better)  # <- sync-dynamic-shape-op
        order = scores.argsort(descending=True).argsort() + 2.0
        discounts = 1.0 / order.log2()
        gains = 2.0**relevance - 1.0
        delta = ((gains[high] - gains[low]) * (discounts[high] - discounts[low])).abs()
        return (delta * functional.softplus(scores[low] - scores[high])).mean()

    return loss, (torch.randn(12, 10, device=device), torch.arange(12, device=device) % 4 * 1.0)
