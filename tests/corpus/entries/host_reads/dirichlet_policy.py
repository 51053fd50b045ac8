from __future__ import annotations

import torch
from torch import distributions, nn
from torch.nn import functional


# The default of `validate_args` is on: the constraint of the concentration is read on the host.
def dirichlet_policy(device):
    head = nn.Linear(8, 4).to(device)

    def loss(x):
        policy = distributions.Dirichlet(
            functional.softplus(head(x)) + 0.1
        )  # <- hidden-sync-in-stock-module
        return policy.entropy().mean()

    return loss, (torch.randn(5, 8, device=device),)
