"""Rankers and retrieval models of shops, feeds and advertisements."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional


class _Frequencies:
    """How often an item is seen, estimated from the steps between two of its appearances."""

    def __init__(self, slots, device, rate=0.05):
        self.step = 0
        self.rate = rate
        self.last = torch.zeros(slots, device=device)
        self.gap = torch.full((slots,), 50.0, device=device)

    def update(self, slots):
        self.step += 1  # guilty: a replay does not count
        elapsed = self.step - self.last[slots]  # guilty: the step of the capture
        self.gap.index_copy_(0, slots, torch.lerp(self.gap[slots], elapsed, self.rate))
        self.last.index_fill_(0, slots, self.step)  # guilty: the step of the capture
        return -self.gap[slots].clamp_min(1.0).log()


def sampled_softmax_corrects_popularity(device):
    """Two towers whose logits are corrected by the estimated log probability of each item."""
    users, items = nn.Linear(12, 8).to(device), nn.Embedding(64, 8).to(device)
    frequencies = _Frequencies(64, device)

    def loss(user, item):
        correction = frequencies.update(item)
        logits = functional.normalize(users(user), dim=-1) @ items(item).T
        labels = torch.arange(user.shape[0], device=device)
        return functional.cross_entropy(logits / 0.1 - correction, labels)

    return loss, (torch.randn(8, 12, device=device), torch.arange(8, device=device) * 7)


def lambda_rank_of_listed_pairs(device):
    scorer = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)

    def loss(features, relevance):
        scores = scorer(features).squeeze(-1)
        better = relevance[:, None] > relevance[None, :]
        high, low = torch.where(better)  # guilty: the number of pairs is read
        order = scores.argsort(descending=True).argsort() + 2.0
        discounts = 1.0 / order.log2()
        gains = 2.0**relevance - 1.0
        delta = ((gains[high] - gains[low]) * (discounts[high] - discounts[low])).abs()
        return (delta * functional.softplus(scores[low] - scores[high])).mean()

    return loss, (torch.randn(12, 10, device=device), torch.arange(12, device=device) % 4 * 1.0)


class _PositionTower(nn.Module):
    """Click = relevance x examination; the position is unknown now and then, as when serving."""

    def __init__(self, drop=0.5):
        super().__init__()
        self.relevance = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
        self.examination = nn.Embedding(11, 1)
        self.drop = drop

    def forward(self, features, position):
        if self.training and random.random() < self.drop:  # guilty: the host draws
            position = torch.zeros_like(position)
        return (self.relevance(features) + self.examination(position)).squeeze(-1)


def position_is_dropped_by_a_coin(device):
    model = _PositionTower().to(device)
    positions = torch.arange(10, device=device) + 1
    return model, (torch.randn(10, 10, device=device), positions)


class _LinearBandit:
    """LinUCB: a ridge regression for each arm, updated by the Sherman-Morrison formula."""

    def __init__(self, arms, size, device, width=0.5):
        self.inverse = torch.eye(size, device=device).repeat(arms, 1, 1)
        self.moment = torch.zeros(arms, size, device=device)
        self.width = width

    def choose(self, context):
        theta = torch.einsum("aij,aj->ai", self.inverse, self.moment)  # guilty: reads the first
        spread = torch.einsum("i,aij,j->a", context, self.inverse, context)  # guilty: old
        return (theta @ context + self.width * spread.sqrt()).argmax()

    def learn(self, arm, context, reward):
        chosen = functional.one_hot(arm, len(self.moment)).to(context.dtype)
        direction = self.inverse @ context  # guilty: as above
        scale = 1.0 + direction @ context
        step = direction[:, :, None] * direction[:, None, :] / scale[:, None, None]
        self.inverse = self.inverse - chosen[:, None, None] * step  # guilty: another tensor
        self.moment = self.moment + reward * chosen[:, None] * context  # guilty: another tensor


def bandit_learns_by_new_matrices(device):
    bandit = _LinearBandit(4, 6, device)

    def serve(context, affinity):
        arm = bandit.choose(context)
        reward = affinity.index_select(0, arm.view(1)).squeeze(0)
        bandit.learn(arm, context, reward)
        return arm, reward

    return serve, (torch.randn(6, device=device), torch.rand(4, device=device))


class _HashedItems(nn.Module):
    """Quotient and remainder of an id share two small tables; reads of their rows are counted."""

    def __init__(self, buckets=16, size=8):
        super().__init__()
        self.buckets = buckets
        self.quotients = nn.Embedding(buckets, size)
        self.remainders = nn.Embedding(buckets, size)
        self.register_buffer("reads", torch.zeros(buckets, dtype=torch.int64))

    def forward(self, ids):
        quotient = torch.div(ids, self.buckets, rounding_mode="floor") % self.buckets
        remainder = ids % self.buckets
        self.reads.scatter_add_(0, remainder.flatten(), torch.ones_like(remainder).flatten())
        return (self.quotients(quotient) * self.remainders(remainder)).sum(1)


def items_share_two_hashed_tables(device):
    return _HashedItems().to(device), (torch.randint(0, 256, (6, 5), device=device),)


def likelihood_of_a_ranking(device):
    """ListMLE: the likelihood of the true order under Plackett and Luce."""
    scorer = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)

    def loss(features, relevance, present):
        scores = scorer(features).squeeze(-1).masked_fill(~present, -1e4)
        order = relevance.masked_fill(~present, -1.0).argsort(dim=-1, descending=True)
        ranked, kept = scores.gather(-1, order), present.gather(-1, order)
        rest = ranked.flip(-1).logcumsumexp(-1).flip(-1)
        return ((rest - ranked) * kept).sum() / kept.sum().clamp_min(1)

    features = torch.randn(3, 7, 10, device=device)
    present = torch.arange(7, device=device) < torch.tensor([[7], [5], [3]], device=device)
    return loss, (features, torch.rand(3, 7, device=device), present)


class _Impressions(nn.Module):
    """Counterfactual clicks, weighted by clipped inverse propensities that normalize themselves."""

    def __init__(self, positions=10):
        super().__init__()
        self.scorer = nn.Linear(10, 1)
        self.register_buffer("propensity", torch.linspace(1.0, 0.1, positions))
        self.register_buffer("mean_weight", torch.ones(()))

    def forward(self, features, position, clicked):
        weight = clicked / self.propensity[position].clamp_min(0.05)
        self.mean_weight.mul_(0.99).add_(weight.mean(), alpha=0.01)
        losses = functional.softplus(-self.scorer(features).squeeze(-1))
        return (losses * weight / self.mean_weight.detach().clone()).mean()


def clicks_weighted_by_propensities(device):
    clicked = (torch.arange(12, device=device) % 3 == 0).float()
    position = torch.arange(12, device=device) % 10
    return _Impressions().to(device), (torch.randn(12, 10, device=device), position, clicked)


def crosses_learn_with_a_rate_for_each_row(device):
    """A whole step of DCN-v2; the embeddings use Adagrad with one sum for each row."""
    table = torch.randn(32, 8, device=device, requires_grad=True)
    crosses = nn.ModuleList([nn.Linear(24, 24) for _ in range(2)]).to(device)
    head = nn.Linear(24, 1).to(device)
    sums = torch.zeros(32, 1, device=device)
    dense = torch.optim.SGD([*crosses.parameters(), *head.parameters()], lr=0.05)
    ids = torch.randint(0, 32, (16, 3), device=device)
    clicks = torch.rand(16, device=device).round()

    def step():
        dense.zero_grad()
        table.grad = None
        first = table[ids].flatten(1)
        x = first
        for cross in crosses:
            x = first * cross(x) + x
        loss = functional.binary_cross_entropy_with_logits(head(x).squeeze(-1), clicks)
        loss.backward()
        dense.step()
        with torch.no_grad():
            sums.add_(table.grad.square().mean(1, keepdim=True))
            table.addcdiv_(table.grad, sums.sqrt().add_(1e-8), value=-0.1)
        return loss.detach()

    return step
