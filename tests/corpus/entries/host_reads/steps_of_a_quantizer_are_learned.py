from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _LearnedStep(torch.autograd.Function):
    """Learned step size quantization: the step has a gradient as well."""

    @staticmethod
    def forward(ctx, x, step, low, high):
        ctx.save_for_backward(x, step)
        ctx.limits = low, high
        return (x / step).clamp(low, high).round() * step

    @staticmethod
    def backward(ctx, gradient):
        x, step = ctx.saved_tensors
        low, high = ctx.limits
        scaled = x / step
        inside = (scaled >= low) & (scaled <= high)
        rounded = scaled.clamp(low, high).round()
        for_step = torch.where(inside, rounded - scaled, rounded)
        size = (gradient * for_step).sum() / (x.numel() * high) ** 0.5
        return gradient * inside, size.view_as(step), None, None


class _QuantizedLayer(nn.Module):
    def __init__(self, inputs=6, outputs=4, bits=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * 0.3)
        self.low, self.high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        start = 2 * self.weight.detach().abs().mean() / self.high**0.5
        self.step = nn.Parameter(start.view(1))

    def forward(self, x):
        return functional.linear(x, _LearnedStep.apply(self.weight, self.step, self.low, self.high))


def steps_of_a_quantizer_are_learned(device):
    return _QuantizedLayer().to(device), (torch.randn(5, 6, device=device),)
