"""Matching, ranking and masking: detectors, rankers and audio models."""

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


class _MatchedOnTheHost(_Matched):
    def forward(self, features, labels, boxes):
        found, scores, cost = self.costs(features, labels, boxes)
        table = cost.tolist()  # guilty: the host matches
        rows, free = [], set(range(self.queries))
        for target in range(len(labels)):
            best = min(free, key=lambda query: table[query][target])
            free.remove(best)
            rows.append(best)
        rows = torch.tensor(rows, device=features.device)  # guilty: a list goes to the device
        return self.losses(found, scores, rows, labels, boxes)


def queries_are_matched_by_the_host(device):
    return _MatchedOnTheHost().to(device), (
        torch.randn(6, 16, device=device),
        torch.randint(4, (3,), device=device),
        torch.rand(3, 4, device=device),
    )


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
        first, second = torch.combinations(numbers).unbind(1)  # guilty: selects by a mask
        return ranker.loss(scores, relevance, first, second)

    return step, (torch.randn(7, 8, device=device), torch.rand(7, device=device))


def documents_are_paired_by_a_triangle(device):
    ranker = _Ranker().to(device)

    def step(documents, relevance):
        scores = ranker.score(documents).squeeze(-1)
        first, second = torch.triu_indices(len(documents), len(documents), 1, device=device)
        return ranker.loss(scores, relevance, first, second)

    return step, (torch.randn(7, 8, device=device), torch.rand(7, device=device))


class _Recognizer(nn.Module):
    """Log mel frames with bands and times masked out, then a small encoder."""

    def __init__(self, mels=12, widest=4):
        super().__init__()
        self.widest = widest
        self.encoder = nn.GRUCell(mels, 8)
        self.head = nn.Linear(8, 5)

    def encode(self, frames):
        state = frames.new_zeros(frames.shape[0], 8)
        for frame in frames.unbind(1):
            state = self.encoder(frame, state)
        return self.head(state).log_softmax(-1)


class _HostMasked(_Recognizer):
    def forward(self, frames):
        mels = frames.shape[-1]
        if self.training:
            width = int(torch.randint(self.widest + 1, ()))  # guilty: drawn on the host
            start = int(torch.randint(mels - width + 1, ()))  # guilty: as above
            frames = frames.clone()
            frames[:, :, start : start + width] = 0.0  # guilty: the band of the capture
        return self.encode(frames)


def bands_are_drawn_on_the_host(device):
    return _HostMasked().to(device), (torch.randn(2, 5, 12, device=device),)


class _DeviceMasked(_Recognizer):
    def masked(self, frames, dim):
        count, size = len(frames), frames.shape[dim]
        width = torch.randint(self.widest + 1, (count, 1), device=frames.device)
        start = (torch.rand(count, 1, device=frames.device) * (size - width + 1)).long()
        places = torch.arange(size, device=frames.device)
        hidden = (places >= start) & (places < start + width)
        return frames.masked_fill(hidden.unsqueeze(1 if dim == 2 else 2), 0.0)

    def forward(self, frames):
        if self.training:
            frames = self.masked(self.masked(frames, 2), 1)
        return self.encode(frames)


def bands_are_drawn_on_the_device(device):
    return _DeviceMasked().to(device), (torch.randn(2, 5, 12, device=device),)
