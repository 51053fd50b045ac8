"""Distributions, resampling and statistics of batches."""

import random

import numpy as np
import torch
from torch import distributions as dist
from torch import nn
from torch.nn import functional


def headings_of_von_mises(device):
    def f(features):
        loc, spread = features.unbind(-1)
        heading = dist.VonMises(loc, functional.softplus(spread) + 0.1, validate_args=False)
        # Rejection sampling: `while not done.all()`.
        angle = heading.sample()  # guilty: loops until all samples are accepted
        return angle, heading.log_prob(angle)

    return f, (torch.randn(16, 2, device=device),)


class FullCovariance(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Linear(6, 3)
        self.root = nn.Parameter(torch.randn(3, 3) * 0.3)

    def forward(self, x, target):
        covariance = self.root @ self.root.T + torch.eye(3, device=x.device)
        normal = dist.MultivariateNormal(  # guilty: cholesky reads whether it failed
            self.loc(x), covariance_matrix=covariance, validate_args=False
        )
        return -normal.log_prob(target).mean()


def regression_with_a_full_covariance(device):
    return FullCovariance().to(device), (
        torch.randn(8, 6, device=device),
        torch.randn(8, 3, device=device),
    )


class FactorCovariance(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc, self.factor = nn.Linear(6, 3), nn.Linear(6, 9)

    def forward(self, x, target):
        raw = self.factor(x).view(-1, 3, 3)
        tril = raw.tril(-1) + torch.diag_embed(functional.softplus(raw.diagonal(dim1=1, dim2=2)))
        # Given the factor, nothing is decomposed: triangular solves and products only.
        normal = dist.MultivariateNormal(self.loc(x), scale_tril=tril, validate_args=False)
        return -normal.log_prob(target).mean(), normal.rsample()


def regression_with_a_factor(device):
    return FactorCovariance().to(device), (
        torch.randn(8, 6, device=device),
        torch.randn(8, 3, device=device),
    )


def range_of_activations_by_histogram(device):
    layer = nn.Linear(6, 12).to(device)

    @torch.no_grad()
    def f(x):
        y = layer(x).abs()
        # Without bounds they are the minimum and maximum, which histc reads on the host.
        counts = torch.histc(y, bins=16)  # guilty: reads the range
        share = counts.cumsum(0) / y.numel()
        return y, (share < 0.99).sum()

    return f, (torch.randn(8, 6, device=device),)


class BalancedRouter(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.register_buffer("bias", torch.zeros(4))

    def forward(self, x):
        scores = self.gate(x).sigmoid()
        picked = (scores + self.bias).topk(2, -1).indices
        # The bounds are numbers, so the histogram is one kernel.
        load = torch.histc(picked.to(x.dtype), bins=4, min=0, max=4)
        with torch.no_grad():
            self.bias.add_((load.mean() - load).sign(), alpha=1e-3)
        return scores.gather(-1, picked), picked


def loads_counted_by_histogram(device):
    return BalancedRouter().to(device), (torch.randn(10, 8, device=device),)


def features_decorrelated(device):
    encoder = nn.Linear(6, 4).to(device)

    def loss(x):
        # cov, inside, asks whether the degrees of freedom, a tensor, are positive.
        correlation = torch.corrcoef(encoder(x).T)  # guilty: reads the degrees of freedom
        return (correlation - torch.eye(4, device=x.device)).square().sum()

    return loss, (torch.randn(16, 6, device=device),)


def pooled_by_masked_mean(device):
    layer = nn.Linear(6, 6).to(device)

    def f(x, mask):
        # The masked sum makes its identity by torch.tensor(0, device=...), a copy from the host.
        return torch.masked.mean(layer(x), 1, mask=mask[..., None])  # guilty: copies the identity

    mask = torch.rand(4, 7, device=device) < 0.8
    mask[:, 0] = True
    return f, (torch.randn(4, 7, 6, device=device), mask)


def errors_of_a_bootstrap(device):
    rng = np.random.default_rng(3)

    def f(prediction, target):
        losses = (prediction - target).square().mean(-1)
        pick = torch.from_numpy(rng.integers(0, len(losses), (20, len(losses))))  # guilty: host
        # Indices on the CPU are copied to the device first, from memory that is not pinned.
        means = losses[pick].mean(1)  # guilty: copies the indices
        return losses.mean(), means.std()

    return f, (torch.randn(12, 3, device=device), torch.randn(12, 3, device=device))


def particles_from_a_host_offset(device):
    def f(particles, logits):
        cdf = logits.softmax(0).cumsum(0)
        offset = random.random()  # guilty: drawn once, at the capture
        comb = (torch.arange(32, device=particles.device) + offset) / 32  # guilty: frozen offset
        return particles[torch.searchsorted(cdf, comb).clamp_(max=31)]

    return f, (torch.randn(32, 2, device=device), torch.randn(32, device=device))


def particles_from_a_device_offset(device):
    def f(particles, logits):
        cdf = logits.softmax(0).cumsum(0)
        offset = torch.rand((), device=particles.device)
        comb = (torch.arange(32, device=particles.device) + offset) / 32
        kept = particles[torch.searchsorted(cdf, comb).clamp_(max=31)]
        return kept + 0.01 * torch.randn_like(kept)

    return f, (torch.randn(32, 2, device=device), torch.randn(32, device=device))


def words_predicted_in_clusters(device):
    head = nn.AdaptiveLogSoftmaxWithLoss(8, 30, [6, 14]).to(device).eval()

    @torch.no_grad()
    def f(hidden):
        # Skips the clusters unless a word of the shortlist needs them.
        return head.predict(hidden)  # guilty: asks whether all are in the shortlist

    return f, (torch.randn(12, 8, device=device),)


def words_scored_in_clusters(device):
    head = nn.AdaptiveLogSoftmaxWithLoss(8, 30, [6, 14], head_bias=True).to(device).eval()

    @torch.no_grad()
    def f(hidden):
        # All clusters for all rows: no branch, unlike forward and predict.
        scores = head.log_prob(hidden)
        return scores.argmax(-1), scores

    return f, (torch.randn(12, 8, device=device),)


class PinballLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("levels", torch.tensor([0.1, 0.5, 0.9]))

    def forward(self, ensemble, target):
        # quantile checks that its levels are in range only if they are on the CPU.
        low = torch.quantile(ensemble, self.levels, dim=1)
        error = target - low
        return torch.maximum(
            self.levels[:, None] * error, (self.levels[:, None] - 1) * error
        ).mean()


def quantiles_of_an_ensemble(device):
    return PinballLoss().to(device), (
        torch.randn(6, 11, device=device),
        torch.randn(6, device=device),
    )


def counts_of_a_negative_binomial(device):
    decoder = nn.Linear(5, 7).to(device)
    dispersion = torch.full((7,), 2.0, device=device)

    @torch.no_grad()
    def f(latent):
        counts = dist.NegativeBinomial(dispersion, logits=decoder(latent), validate_args=False)
        drawn = counts.sample()
        return drawn, counts.log_prob(drawn).sum(-1)

    return f, (torch.randn(9, 5, device=device),)


def sticks_of_kumaraswamy(device):
    encoder = nn.Linear(5, 8).to(device)

    def f(x):
        a, b = functional.softplus(encoder(x)).add(0.1).chunk(2, -1)
        breaks = dist.Kumaraswamy(a, b, validate_args=False).rsample()
        # The backward of cumprod asks whether there is a zero.
        left = (1 - breaks).cumprod(-1)  # guilty: its backward reads whether there is a zero
        return torch.cat([breaks[:, :1], breaks[:, 1:] * left[:, :-1], left[:, -1:]], -1)

    return f, (torch.randn(6, 5, device=device),)


class Standardize(nn.Module):
    """Mean and variance of everything seen, by the formula of Chan; the count is on the device."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(1e-4))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    @torch.no_grad()
    def forward(self, x):
        n, (var, mean) = len(x), torch.var_mean(x, 0, correction=0)
        total, delta = self.count + n, mean - self.mean
        within = self.var * self.count + var * n
        self.var.copy_((within + delta.square() * self.count * n / total) / total)
        self.mean.add_(delta * n / total)
        self.count.copy_(total)
        return (x - self.mean) * (self.var + 1e-8).rsqrt()


def observations_standardized(device):
    return Standardize().to(device), (torch.randn(10, 4, device=device) * 3 + 1,)
