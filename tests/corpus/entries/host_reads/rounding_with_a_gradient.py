import torch
from torch import nn
from torch.nn import functional


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return (x / scale).round().clamp(-8, 7) * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        inside = (x / scale).abs() <= 8
        grad_scale = None
        if ctx.needs_input_grad[1]:
            grad_scale = (grad * torch.where(inside, 0.0, x.sign() * 8)).sum()
        return grad * inside, grad_scale


def rounding_with_a_gradient(device):
    # All of it is on the device, what backward needs is known when it is captured.
    scale = nn.Parameter(torch.full((), 0.1, device=device))
    net = nn.Linear(4, 4, device=device)

    def f(x):
        return functional.linear(x, Rounded.apply(net.weight, scale), net.bias).square().mean()

    return f, (torch.randn(6, 4, device=device),)
