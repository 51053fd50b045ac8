"""Losses: some read a value to check it, some only look as if they did."""

import logging
import random

import torch
from torch import nn
from torch.nn import functional

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)


def heteroscedastic_regression(device):
    trunk = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2)).to(device)
    x, y = torch.randn(16, 8, device=device), torch.randn(16, device=device)

    def loss(x, y):
        mean, raw = trunk(x).unbind(-1)
        return functional.gaussian_nll_loss(
            mean, y, functional.softplus(raw)
        )  # guilty: `if torch.any(var < 0)`

    return loss, (x, y)


def mean_over_valid_by_builtin_max(device):
    head = nn.Linear(8, 10).to(device)
    x = torch.randn(4, 6, 8, device=device)
    labels = torch.randint(-1, 10, (4, 6), device=device)

    def loss(x, labels):
        valid = labels >= 0
        each = functional.cross_entropy(
            head(x).transpose(1, 2), labels.clamp(min=0), reduction="none"
        )
        return (each * valid).sum() / max(valid.sum(), 1)  # guilty: compares on the host

    return loss, (x, labels)


def mean_over_valid_by_clamp(device):
    head = nn.Linear(8, 10).to(device)
    x = torch.randn(4, 6, 8, device=device)
    labels = torch.randint(-1, 10, (4, 6), device=device)

    def loss(x, labels):
        valid = labels >= 0
        each = functional.cross_entropy(
            head(x).transpose(1, 2), labels.clamp(min=0), reduction="none"
        )
        value = (each * valid).sum() / valid.sum().clamp(min=1)
        logger.debug("loss %s of %s labels", value, valid)
        return value

    return loss, (x, labels)


class WeightedLoss(nn.Module):
    """The weights are no buffer, so they stay on the CPU."""

    def __init__(self, classes):
        super().__init__()
        self.class_weights = 1.0 / torch.arange(1, classes + 1)

    def forward(self, logits, labels):
        weights = self.class_weights.to(logits.device)  # guilty: a copy that waits
        return functional.cross_entropy(logits, labels, weight=weights)


def class_weights_on_the_cpu(device):
    logits = torch.randn(8, 5, device=device, requires_grad=True)
    return WeightedLoss(5).to(device), (logits, torch.randint(5, (8,), device=device))


def pairwise_ranking_by_combinations(device):
    scorer = nn.Linear(6, 1).to(device)
    documents = torch.randn(7, 6, device=device)

    def loss(documents):
        scores = scorer(documents).squeeze(-1)
        pairs = torch.combinations(scores, r=2)  # guilty: selects by a mask
        return functional.softplus(pairs[:, 1] - pairs[:, 0]).mean()

    return loss, (documents,)


def focal_loss_with_scalar_writes(device):
    logits = torch.randn(12, 4, device=device, requires_grad=True)
    labels = torch.randint(4, (12,), device=device)

    def loss(logits, labels):
        log_p = logits.log_softmax(-1)
        target = functional.one_hot(labels, num_classes=4).to(log_p.dtype)
        weight = (1 - log_p.exp()).pow(2.0).detach()
        weight[weight < 1e-2] = 0.0
        return -(target * weight * log_p).sum(-1).mean()

    return loss, (logits, labels)


def gradient_penalty_of_a_critic(device):
    critic = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    real, fake = torch.randn(8, 6, device=device), torch.randn(8, 6, device=device)

    def step():
        critic.zero_grad(set_to_none=True)
        mix = torch.rand(8, 1, device=device)
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(2, dim=1) - 1).square().mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        loss.backward()
        return loss

    return step


def contrastive_views_by_a_fresh_seed(device):
    """The generator is new and has the same seed in each call, so the crops are always the same."""
    encoder = nn.Conv2d(3, 8, 3, padding=1).to(device)
    images = torch.randn(2, 3, 16, 16, device=device)

    def loss(images):
        draw = random.Random(1234)
        views = []
        for _ in range(2):
            top, left = draw.randint(0, 4), draw.randint(0, 4)
            views.append(encoder(images[..., top : top + 12, left : left + 12]).mean((-1, -2)))
        return 1 - functional.cosine_similarity(*views).mean()

    return loss, (images,)
