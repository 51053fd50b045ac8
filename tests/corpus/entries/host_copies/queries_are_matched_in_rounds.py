from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _Matched(nn.Module):
    """Losses of a detector with queries: each target belongs to one query."""

    def __init__(self, queries=6, classes=4):
        super().__init__()
        self.boxes = nn.Linear(16, 4)
        self.classes = nn.Linear(16, classes)
        self.queries = queries

    def costs(self, features, labels, boxes):
        found = self.boxes(features).sigmoid()
        scores = self.classes(features).softmax(-1)
        cost = torch.cdist(found, boxes, p=1) - scores[:, labels]
        return found, scores, cost.detach()

    def losses(self, found, scores, rows, labels, boxes):
        chosen = scores[rows].gather(1, labels.unsqueeze(1))
        return functional.l1_loss(found[rows], boxes) - chosen.clamp(min=1e-6).log().mean()


class _MatchedInRounds(_Matched):
    def forward(self, features, labels, boxes):
        found, scores, cost = self.costs(features, labels, boxes)
        targets = cost.shape[1]
        rows = torch.zeros(targets, dtype=torch.long, device=cost.device)
        numbers = torch.arange(targets, device=cost.device)
        for _ in range(targets):
            flat = cost.flatten().argmin()
            query, target = flat // targets, flat % targets
            rows = torch.where(numbers == target, query, rows)
            taken = torch.arange(self.queries, device=cost.device) == query
            cost = cost.masked_fill(taken.unsqueeze(1), float("inf"))
            cost = cost.masked_fill(numbers == target, float("inf"))
        return self.losses(found, scores, rows, labels, boxes)


def queries_are_matched_in_rounds(device):
    return _MatchedInRounds().to(device), (
        torch.randn(6, 16, device=device),
        torch.randint(4, (3,), device=device),
        torch.rand(3, 4, device=device),
    )
