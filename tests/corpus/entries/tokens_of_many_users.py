"""Decoding and fine-tuning for many users: samplers, caches, adapters, masks."""

from __future__ import annotations

import torch
from torch import nn


def sampler_by_entropy_and_its_variance(device):
    """A sampler that is greedy where the model is sure, and hotter where it is not."""
    head = nn.Linear(16, 40).to(device).requires_grad_(False)

    def next_token(hidden):
        logits = head(hidden)
        logs = logits.log_softmax(-1)
        probabilities = logs.exp()
        entropy = -(probabilities * logs).sum(-1)
        variance = (probabilities * (logs + entropy[:, None]).square()).sum(-1)
        if entropy.mean() < 0.1 and variance.mean() < 0.1:  # guilty: a branch on the device
            return logits.argmax(-1)
        temperature = 0.7 + 0.3 * entropy + 0.2 * variance
        noise = torch.empty_like(logits).exponential_()
        return ((logits / temperature[:, None]).softmax(-1) / noise).argmax(-1)

    return next_token, (torch.randn(4, 16, device=device),)


class _ResidualCache(nn.Module):
    """Keys in two bits, but for the newest ones, which are quantized a group at a time."""

    def __init__(self, heads=2, size=8, group=4, length=16):
        super().__init__()
        self.group = group
        self.filled = 0
        self.groups = 0
        self.register_buffer("recent", torch.zeros(heads, group, size))
        self.register_buffer("codes", torch.zeros(heads, length, size, dtype=torch.uint8))
        self.register_buffer("low", torch.zeros(heads, length // group, size))
        self.register_buffer("scale", torch.ones(heads, length // group, size))

    def forward(self, key, query):
        self.recent[:, self.filled].copy_(key)  # guilty: the slot of the captured token
        self.filled += 1  # guilty: a replay does not count
        if self.filled == self.group:  # guilty: a replay never flushes, or always
            low, high = self.recent.amin(1), self.recent.amax(1)
            scale = (high - low).clamp_min(1e-5) / 3
            place = self.groups % self.low.shape[1]  # guilty: as above
            rows = slice(place * self.group, (place + 1) * self.group)
            codes = ((self.recent - low[:, None]) / scale[:, None]).round()
            self.codes[:, rows].copy_(codes.to(torch.uint8))  # guilty: as above
            self.low[:, place].copy_(low)  # guilty: as above
            self.scale[:, place].copy_(scale)  # guilty: as above
            self.filled = 0  # guilty: as above
            self.groups += 1  # guilty: as above
        spread = self.scale.repeat_interleave(self.group, 1)
        keys = self.codes * spread + self.low.repeat_interleave(self.group, 1)
        return torch.einsum("hd,hld->hl", query, torch.cat([keys, self.recent], 1))


def newest_keys_wait_to_be_quantized(device):
    cache = _ResidualCache().to(device)
    return cache, (torch.randn(2, 8, device=device), torch.randn(2, 8, device=device))


class _RolloutLoss(nn.Module):
    """Policy loss of sampled answers; a controller keeps their distance to the reference."""

    def __init__(self, vocabulary=24, target=0.05, horizon=100):
        super().__init__()
        self.policy = nn.Linear(12, vocabulary)
        self.target, self.horizon = target, horizon
        self.coefficient = 0.2

    def forward(self, hidden, tokens, reference, advantage):
        logs = self.policy(hidden).log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
        ratio = reference - logs
        distance = (ratio.exp() - ratio - 1).mean()
        loss = -(advantage[:, None] * logs).mean() + self.coefficient * distance  # guilty: as below
        with torch.no_grad():
            error = (distance / self.target - 1).clamp(-0.2, 0.2)
            factor = 1 + error * len(tokens) / self.horizon
            self.coefficient = self.coefficient * factor  # guilty: another tensor
        return loss


def controller_moves_its_coefficient(device):
    tokens = torch.randint(0, 24, (4, 6), device=device)
    reference = torch.full((4, 6), -3.2, device=device)
    hidden, advantage = torch.randn(4, 6, 12, device=device), torch.randn(4, device=device)
    return _RolloutLoss().to(device), (hidden, tokens, reference, advantage)


class _GroupedWeights(nn.Module):
    """A linear layer whose weight is kept as nibbles with a scale for each group of inputs."""

    def __init__(self, inputs=32, outputs=16, group=8):
        super().__init__()
        self.group = group
        packed = torch.randint(0, 256, (inputs // 2, outputs), dtype=torch.uint8)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", torch.rand(inputs // group, outputs) * 0.1)
        self.register_buffer("zeros", torch.full((inputs // group, outputs), 8, dtype=torch.uint8))

    def forward(self, x):
        nibbles = torch.stack([self.packed & 15, self.packed >> 4], 1).flatten(0, 1)
        zeros = self.zeros.repeat_interleave(self.group, 0)
        weight = (nibbles.to(x.dtype) - zeros) * self.scales.repeat_interleave(self.group, 0)
        return x @ weight


def nibbles_with_zeros_of_each_group(device):
    return _GroupedWeights().to(device), (torch.randn(3, 32, device=device),)


def grammar_bits_are_unpacked_on_the_device(device):
    """A grammar allows tokens by bits of int32 words; the words are filled before each step."""
    head = nn.Linear(16, 70).to(device).requires_grad_(False)
    places = torch.arange(32, device=device, dtype=torch.int32)

    def next_token(hidden, words, constrained):
        allowed = ((words[..., None] >> places) & 1).bool().flatten(-2)[:, :70]
        allowed = allowed | ~constrained[:, None]
        logits = head(hidden)
        logits.masked_fill_(~allowed, float("-inf"))
        return logits.argmax(-1), logits.logsumexp(-1)

    words = torch.randint(1, 2**31 - 1, (4, 3), device=device, dtype=torch.int32)
    constrained = torch.tensor([True, False, True, True], device=device)
    return next_token, (torch.randn(4, 16, device=device), words, constrained)


def answers_compared_within_their_group(device):
    """A whole step: advantages within each group of answers, clipped ratios, masked tokens."""
    policy = nn.Linear(12, 24).to(device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, capturable=True)
    hidden = torch.randn(8, 6, 12, device=device)
    tokens = torch.randint(0, 24, (8, 6), device=device)
    old = torch.full((8, 6), -3.2, device=device)
    rewards = torch.randn(8, device=device)
    lengths = torch.tensor([6, 4, 5, 2, 6, 3, 6, 1], device=device)

    def step():
        grouped = rewards.view(2, 4)
        centered = grouped - grouped.mean(1, keepdim=True)
        advantage = (centered / (grouped.std(1, keepdim=True) + 1e-4)).flatten()[:, None]
        answered = torch.arange(6, device=device) < lengths[:, None]
        logs = policy(hidden).log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
        ratio = (logs - old).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        loss = -(gain * answered).sum() / answered.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach(), ((ratio - 1).abs() > 0.2).logical_and(answered).sum()

    return step
