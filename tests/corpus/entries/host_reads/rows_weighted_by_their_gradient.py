from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def _layer_and_input(device):
    return nn.Linear(8, 8).to(device), torch.randn(4, 8, device=device)


# The model is made of functions and a dictionary of tensors; gradients of each row.
def rows_weighted_by_their_gradient(device):
    layer, x = _layer_and_input(device)
    target = torch.randn(4, 8, device=device)
    weights = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(weights, x, y):
        return functional.mse_loss(
            torch.func.functional_call(layer, weights, (x.unsqueeze(0),))[0], y
        )

    def forward(x):
        grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, target)
        norms = sum(g.flatten(1).square().sum(1) for g in grads.values()).sqrt()
        share = (1.0 / norms).clamp(max=1.0)
        return {name: torch.einsum("n,n...->...", share, g) for name, g in grads.items()}

    return forward, (x,)
