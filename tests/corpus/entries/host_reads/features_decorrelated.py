import torch
from torch import nn


def features_decorrelated(device):
    encoder = nn.Linear(6, 4).to(device)

    def loss(x):
        # cov, inside, asks whether the degrees of freedom, a tensor, are positive.
        correlation = torch.corrcoef(encoder(x).T)  # <- hidden-sync-in-stock-module
        return (correlation - torch.eye(4, device=x.device)).square().sum()

    return loss, (torch.randn(16, 6, device=device),)
