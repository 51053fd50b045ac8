from __future__ import annotations

import functools

import torch
from torch import nn


def _layer_and_input(device):
    return nn.Linear(8, 8).to(device), torch.randn(4, 8, device=device)


# A function of its own for each type, chosen in each call by the same type.
def dispatched_by_type(device):
    layer, x = _layer_and_input(device)

    @functools.singledispatch
    def act(x):
        return x

    @act.register
    def _(x: torch.Tensor):
        return x.tanh()

    def forward(x):
        return act(layer(x))

    return forward, (x,)
