from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize


class _Skew(nn.Module):
    def forward(self, x):
        a = x.triu(1)
        return a - a.T


# The cached value lives within the call.
def parametrization_cached_in_the_call(device):
    layer = nn.Linear(6, 6, bias=False).to(device)
    parametrize.register_parametrization(layer, "weight", _Skew())

    def forward(x):
        with parametrize.cached():
            return layer(layer(x))

    return forward, (torch.randn(4, 6, device=device),)
