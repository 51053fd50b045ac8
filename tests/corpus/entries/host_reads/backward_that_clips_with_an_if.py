import torch
from torch import nn


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        norm = grad.norm()
        if norm > 1.0:  # <- sync-truth-value
            grad = grad / norm
        return grad


def backward_that_clips_with_an_if(device):
    first, second = nn.Linear(4, 8).to(device), nn.Linear(8, 1).to(device)

    def forward(x):
        return second(Clipped.apply(first(x)))

    return forward, (torch.randn(5, 4, device=device),)
