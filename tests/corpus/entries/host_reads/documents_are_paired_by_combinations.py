from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _Ranker(nn.Module):
    """RankNet on the documents of one query."""

    def __init__(self, features=8):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(features, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(self, scores, relevance, first, second):
        order = torch.sign(relevance[first] - relevance[second])
        gap = scores[first] - scores[second]
        weight = order.abs()
        return (functional.softplus(-order * gap) * weight).sum() / weight.sum().clamp(min=1)


def documents_are_paired_by_combinations(device):
    ranker = _Ranker().to(device)

    def step(documents, relevance):
        scores = ranker.score(documents).squeeze(-1)
        numbers = torch.arange(len(documents), device=device)
        first, second = torch.combinations(numbers).unbind(1)  # <- sync-dynamic-shape-op
        return ranker.loss(scores, relevance, first, second)

    return step, (torch.randn(7, 8, device=device), torch.rand(7, device=device))
