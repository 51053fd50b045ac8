"""What vision, speech and recommendation teams run on an ordinary day."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional


# Class weights from the labels of the batch.
def segmentation_weights_from_a_histogram(device):
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1)).to(device)
    images = torch.randn(2, 3, 8, 8, device=device)
    labels = torch.randint(0, 5, (2, 8, 8), device=device)

    def loss_fn(images, labels):
        counts = torch.bincount(labels.flatten(), minlength=5)  # guilty: sizes from the values
        weight = 1.0 / (counts.float() + 1.0)
        return functional.cross_entropy(net(images), labels, weight=weight / weight.sum())

    return loss_fn, (images, labels)


# The same histogram by a sum of one-hot rows.
def segmentation_weights_from_one_hot_rows(device):
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1)).to(device)
    images = torch.randn(2, 3, 8, 8, device=device)
    labels = torch.randint(0, 5, (2, 8, 8), device=device)
    classes = torch.arange(5, device=device)

    def loss_fn(images, labels):
        counts = (labels.flatten()[:, None] == classes).sum(0)
        weight = 1.0 / (counts.float() + 1.0)
        return functional.cross_entropy(net(images), labels, weight=weight / weight.sum())

    return loss_fn, (images, labels)


class _MultiScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)
        self.scales = (0.5, 1.0, 2.0)
        self.seen = 0

    def forward(self, x):
        if self.training:
            scale = self.scales[self.seen % len(self.scales)]  # guilty: each batch its own
            x = functional.interpolate(x, scale_factor=scale)
            self.seen += 1  # guilty: counted once only
        return self.head(functional.relu(self.stem(x)).mean((2, 3)))


def detector_trains_at_many_scales(device):
    model = _MultiScale().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(4, 3, 8, 8, device=device), torch.randint(0, 4, (4,), device=device)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


# All scales in each step.
class _Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)
        self.scales = (0.5, 1.0, 2.0)
        self.last_shapes = []

    def forward(self, x):
        self.last_shapes = []
        pooled = []
        for scale in self.scales:
            resized = functional.interpolate(x, scale_factor=scale)
            self.last_shapes.append(tuple(resized.shape[2:]))
            pooled.append(functional.relu(self.stem(resized)).mean((2, 3)))
        return self.head(torch.stack(pooled).mean(0))


def detector_averages_its_scales(device):
    model = _Pyramid().to(device)
    return model, (torch.randn(4, 3, 8, 8, device=device),)


# A greedy suppression of a fixed number of boxes, without a host.
def soft_suppression_of_boxes(device):
    centers, scores = torch.rand(16, 2, device=device), torch.rand(16, device=device)

    def suppress(centers, scores):
        left, kept = scores.clone(), []
        for _ in range(4):
            best = left.argmax()
            kept.append(best)
            near = torch.exp(-(centers - centers.index_select(0, best[None])).square().sum(1) / 0.1)
            left = left * (1 - near)
        return torch.stack(kept)

    return suppress, (centers, scores)


# Boxes above a threshold, of which there are as many as there are.
def detections_above_a_threshold(device):
    head = nn.Linear(8, 5).to(device)
    features = torch.randn(32, 8, device=device)

    @torch.no_grad()
    def detect(features):
        boxes, logits = head(features).split([4, 1], dim=1)
        scores = logits.squeeze(1).sigmoid()
        confident = torch.where(scores > 0.5)[0]  # guilty: as many rows as there are
        return boxes.index_select(0, confident), scores.index_select(0, confident)

    return detect, (features,)


class _Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 16, batch_first=True)
        self.out = nn.Linear(16, 6)

    def forward(self, frames, lengths):
        steps = torch.arange(lengths.max(), device=frames.device)  # guilty: a length on the host
        mask = steps[None] < lengths[:, None]
        hidden, _ = self.rnn(frames)
        hidden = hidden[:, : mask.shape[1]] * mask[..., None]
        return self.out(hidden.sum(1) / lengths[:, None])


def utterances_masked_up_to_the_longest(device):
    lengths = torch.tensor([10, 7, 4], device=device)
    model = _Encoder().to(device).eval().requires_grad_(False)
    return model, (torch.randn(3, 10, 8, device=device), lengths)


# As many steps as there are frames.
class _PaddedEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 16, batch_first=True)
        self.out = nn.Linear(16, 6)

    def forward(self, frames, lengths):
        steps = torch.arange(frames.shape[1], device=frames.device)
        mask = steps[None] < lengths[:, None]
        hidden, _ = self.rnn(frames)
        hidden = hidden.masked_fill(~mask[..., None], 0.0)
        return self.out(hidden.sum(1) / lengths.clamp(min=1)[:, None])


def utterances_masked_up_to_the_padding(device):
    lengths = torch.tensor([10, 7, 4], device=device)
    model = _PaddedEncoder().to(device).eval().requires_grad_(False)
    return model, (torch.randn(3, 10, 8, device=device), lengths)


class _SpecAugment(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.width = width

    def forward(self, mel):
        if not self.training:
            return mel
        start = random.randrange(mel.shape[2] - self.width)  # guilty: one place for all steps
        mel = mel.clone()
        mel[:, :, start : start + self.width] = 0
        return mel


def spectrograms_lose_a_band_of_time(device):
    model = nn.Sequential(_SpecAugment(), nn.Flatten(), nn.Linear(8 * 20, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mel, y = torch.randn(4, 8, 20, device=device), torch.randint(0, 4, (4,), device=device)

    def step():
        loss = functional.cross_entropy(model(mel), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


# The place of the band is drawn on the device.
class _SpecAugmentOnDevice(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.width = width

    def forward(self, mel):
        if not self.training:
            return mel
        batch, _, frames = mel.shape
        start = torch.rand(batch, 1, device=mel.device) * (frames - self.width)
        steps = torch.arange(frames, device=mel.device)
        band = (steps >= start) & (steps < start + self.width)
        return mel.masked_fill(band[:, None], 0.0)


def spectrograms_lose_their_own_bands(device):
    model = nn.Sequential(_SpecAugmentOnDevice(), nn.Flatten(), nn.Linear(8 * 20, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mel, y = torch.randn(4, 8, 20, device=device), torch.randint(0, 4, (4,), device=device)

    def step():
        loss = functional.cross_entropy(model(mel), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


class _StreamingConv(nn.Module):
    """Left context is kept from chunk to chunk."""

    def __init__(self, channels=4, kernel=5):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel)
        self.register_buffer("context", torch.zeros(1, channels, kernel - 1), persistent=False)

    @torch.no_grad()
    def forward(self, chunk):
        x = torch.cat([self.context, chunk], dim=-1)
        self.context.copy_(x[..., -self.context.shape[-1] :])
        return self.conv(x)


def keyword_spotter_copies_its_context(device):
    return _StreamingConv().to(device), (torch.randn(1, 4, 6, device=device),)


class _RebindingConv(nn.Module):
    def __init__(self, channels=4, kernel=5):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel)
        self.kernel = kernel
        self.context = None

    @torch.no_grad()
    def forward(self, chunk):
        if self.context is None:
            self.context = chunk.new_zeros(*chunk.shape[:2], self.kernel - 1)
        x = torch.cat([self.context, chunk], dim=-1)  # guilty: the context of the capture
        self.context = x[..., -(self.kernel - 1) :]  # guilty: another tensor
        return self.conv(x)


def keyword_spotter_rebinds_its_context(device):
    return _RebindingConv().to(device), (torch.randn(1, 4, 6, device=device),)


# Rows of items are looked up once each.
def features_of_distinct_items(device):
    table = nn.Embedding(50, 8).to(device)
    ids = torch.randint(0, 50, (6, 4), device=device)

    @torch.no_grad()
    def lookup(ids):
        distinct, inverse = torch.unique(ids, return_inverse=True)  # guilty: how many there are
        return table(distinct)[inverse].mean(1)

    return lookup, (ids,)


def negatives_from_numpy(device):
    users, items = nn.Embedding(20, 8).to(device), nn.Embedding(50, 8).to(device)
    ids, clicked = torch.randint(0, 20, (6,), device=device), torch.randint(0, 50, (6,)).to(device)
    rng = np.random.default_rng(0)

    def loss_fn(ids, clicked):
        drawn = rng.integers(0, 50, size=6)  # guilty: other negatives in each step
        negative = torch.from_numpy(drawn).to(clicked.device)  # guilty: copies from the host
        u = users(ids)
        margin = (u * items(clicked)).sum(1) - (u * items(negative)).sum(1)
        return -functional.logsigmoid(margin).mean()

    return loss_fn, (ids, clicked)


def negatives_from_the_device(device):
    users, items = nn.Embedding(20, 8).to(device), nn.Embedding(50, 8).to(device)
    ids, clicked = torch.randint(0, 20, (6,), device=device), torch.randint(0, 50, (6,)).to(device)

    def loss_fn(ids, clicked):
        negative = torch.randint_like(clicked, items.num_embeddings)
        negative = torch.where(negative == clicked, (negative + 1) % 50, negative)
        u = users(ids)
        margin = (u * items(clicked)).sum(1) - (u * items(negative)).sum(1)
        return -functional.logsigmoid(margin).mean()

    return loss_fn, (ids, clicked)


class _TwoTowers(nn.Module):
    """Sampled softmax with a correction for how often an item is seen."""

    def __init__(self, items=30):
        super().__init__()
        self.query, self.items = nn.Linear(8, 8), nn.Embedding(items, 8)
        self.register_buffer("counts", torch.ones(items))
        self.total = float(items)

    def forward(self, query, ids):
        logits = self.query(query) @ self.items(ids).T
        self.counts.index_add_(0, ids, torch.ones_like(ids, dtype=torch.float))
        self.total += len(ids)  # guilty: the number of the capture
        log_q = torch.log(self.counts[ids] / self.total)  # guilty: as above
        target = torch.arange(len(ids), device=ids.device)
        return functional.cross_entropy(logits - log_q, target), log_q.mean()


def two_towers_count_on_the_host(device):
    args = torch.randn(6, 8, device=device), torch.randint(0, 30, (6,), device=device)
    return _TwoTowers().to(device), args


class _CountingTowers(nn.Module):
    def __init__(self, items=30):
        super().__init__()
        self.query, self.items = nn.Linear(8, 8), nn.Embedding(items, 8)
        self.register_buffer("counts", torch.ones(items))

    def forward(self, query, ids):
        logits = self.query(query) @ self.items(ids).T
        with torch.no_grad():
            self.counts.index_add_(0, ids, torch.ones_like(ids, dtype=torch.float))
            log_q = torch.log(self.counts[ids] / self.counts.sum())
        target = torch.arange(len(ids), device=ids.device)
        return functional.cross_entropy(logits - log_q, target)


def two_towers_count_on_the_device(device):
    args = torch.randn(6, 8, device=device), torch.randint(0, 30, (6,), device=device)
    return _CountingTowers().to(device), args
