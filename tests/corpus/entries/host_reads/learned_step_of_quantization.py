from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


def _batch(device, n=8):
    return torch.randn(n, 8, device=device), torch.randint(4, (n,), device=device)


class _LearnedStep(torch.autograd.Function):
    """Quantization with a learned step; the limits are numbers."""

    @staticmethod
    def forward(ctx, x, scale, low, high):
        ctx.save_for_backward(x, scale)
        ctx.limits = low, high, 1.0 / math.sqrt(x.numel() * high)
        return (x / scale).clamp(low, high).round() * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        low, high, g = ctx.limits
        q = x / scale
        small, big = q < low, q > high
        middle = ~(small | big)
        d_scale = small * low + big * high + middle * (q.round() - q)
        d_x = grad * middle if ctx.needs_input_grad[0] else None
        return d_x, (d_scale * grad).sum().reshape(scale.shape) * g, None, None


class _QuantLinear(nn.Linear):
    def __init__(self, *args, bits=4):
        super().__init__(*args)
        self.limits = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        self.step_size = nn.Parameter(2 * self.weight.detach().abs().mean() / self.limits[1] ** 0.5)

    def forward(self, x):
        return functional.linear(
            x, _LearnedStep.apply(self.weight, self.step_size, *self.limits), self.bias
        )


def learned_step_of_quantization(device):
    model = nn.Sequential(_QuantLinear(8, 16), nn.ReLU(), _QuantLinear(16, 4)).to(device)
    optimizer, (x, y) = torch.optim.Adam(model.parameters(), capturable=True), _batch(device)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step
