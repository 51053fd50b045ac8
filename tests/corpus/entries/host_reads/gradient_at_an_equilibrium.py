import torch
from torch import nn


class Equilibrium(torch.autograd.Function):
    """z = tanh(z W' + x), differentiated at the solution."""

    @staticmethod
    def forward(ctx, x, weight):
        z = torch.zeros_like(x)
        for _ in range(20):
            z = torch.tanh(z @ weight.T + x)
        ctx.save_for_backward(z, weight)
        return z

    @staticmethod
    def backward(ctx, grad):
        z, weight = ctx.saved_tensors
        slope = 1 - z.square()
        system = torch.eye(z.shape[1], device=z.device) - slope[:, :, None] * weight
        adjoint = torch.linalg.solve(system.mT, grad)  # <- linalg-error-check
        scaled = adjoint * slope
        return scaled, scaled.T @ z


def gradient_at_an_equilibrium(device):
    weight = nn.Parameter(torch.randn(5, 5, device=device) * 0.1)

    def step(x):
        weight.grad = None
        loss = Equilibrium.apply(x, weight).square().mean()
        loss.backward()
        return loss, weight.grad

    return step, (torch.randn(7, 5, device=device),)
