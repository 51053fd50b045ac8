import torch
from torch import nn


class RoundThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.levels = levels
        ctx.save_for_backward(x)
        return torch.round(x.clamp(0, 1) * levels) / levels

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ((x > 0) & (x < 1)), None


def straight_through_rounding(device):
    layer = nn.Linear(6, 6).to(device)

    def quantized(x):
        return RoundThrough.apply(torch.sigmoid(layer(x)), 2**4 - 1)

    return quantized, (torch.randn(5, 6, device=device, requires_grad=True),)
