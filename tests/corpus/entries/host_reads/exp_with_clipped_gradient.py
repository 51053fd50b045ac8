import torch
from torch.autograd import Function


class ClippedGradient(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if grad.abs().max() > 10:  # <- sync-truth-value
            grad = grad.clamp(-10, 10)
        return grad * x.exp()


def exp_with_clipped_gradient(device):
    def forward(x):
        return ClippedGradient.apply(x)

    return forward, (torch.randn(4, 8, device=device, requires_grad=True),)
