from __future__ import annotations

import torch
from torch.nn import functional


def rows(device, *shape, grad=False):
    return torch.randn(*(shape or (4, 8)), device=device, requires_grad=grad)


def hessian_of_a_loss(device):
    data, sign = rows(device, 20, 4), rows(device, 20).sign()

    def loss(theta):
        margin = functional.softplus(-sign * (data @ theta)).mean()
        return margin + 0.05 * theta.square().sum()

    return torch.func.hessian(loss), (rows(device, 4),)
