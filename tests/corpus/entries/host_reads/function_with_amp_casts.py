from __future__ import annotations

import torch
from torch import nn


class _Scaled(torch.autograd.Function):
    """Runs in the type of autocast, with the casts of `torch.amp`."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.T, x.T @ grad


# The casts belong to the captured kernels, and no state outlives the call.
def function_with_amp_casts(device):
    weight = nn.Parameter(torch.randn(8, 8, device=device) / 3)

    def forward(x):
        return _Scaled.apply(x, weight)

    return forward, (torch.randn(4, 8, device=device, requires_grad=True),)
