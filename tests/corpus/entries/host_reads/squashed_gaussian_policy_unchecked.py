from __future__ import annotations

import math

import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as fn


def squashed_gaussian_policy_unchecked(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    class Actor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Linear(8, 4)

        def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            mean, log_std = self.trunk(observation).chunk(2, -1)
            base = Normal(mean, log_std.clamp(-5, 2).exp(), validate_args=False)
            raw = base.rsample()
            # log(1 - tanh(x)^2), in the stable form
            squash = 2 * (math.log(2) - raw - fn.softplus(-2 * raw))
            return raw.tanh(), (base.log_prob(raw) - squash).sum(-1)

    return Actor().to(device), (torch.randn(32, 8, device=device),)
