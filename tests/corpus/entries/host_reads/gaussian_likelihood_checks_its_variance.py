import torch
from torch import nn


def gaussian_likelihood_checks_its_variance(device):
    net = nn.Linear(8, 2).to(device)
    target = torch.randn(16, 1, device=device)

    def loss(x):
        mean, raw = net(x).chunk(2, dim=-1)
        variance = nn.functional.softplus(raw) + 1e-4
        return nn.functional.gaussian_nll_loss(
            mean, target, variance
        )  # <- hidden-sync-in-stock-module

    return loss, (torch.randn(16, 8, device=device),)
