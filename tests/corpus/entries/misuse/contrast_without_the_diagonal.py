import torch
from torch import nn


def contrast_without_the_diagonal(device):
    """A boolean mask is assigned a Python number, which fills without counting its elements."""
    net = nn.Linear(10, 6).to(device)
    diagonal = torch.eye(12, dtype=torch.bool, device=device)
    positives = torch.arange(12, device=device).roll(6)

    def loss(x):
        z = nn.functional.normalize(net(torch.cat([x, x + 0.1])), dim=-1)
        similarity = z @ z.T / 0.5
        similarity[diagonal] = float("-inf")
        return nn.functional.cross_entropy(similarity, positives)

    return loss, (torch.randn(6, 10, device=device),)
