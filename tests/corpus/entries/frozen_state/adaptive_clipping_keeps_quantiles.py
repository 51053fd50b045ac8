import torch
from torch import nn


def adaptive_clipping_keeps_quantiles(device):
    model = nn.Linear(8, 1, device=device)
    history = torch.zeros(16, device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        grads = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
        norm = torch.stack([each.norm() for each in grads]).norm()
        history.copy_(torch.cat([history[1:], norm[None]]))
        bound = history.sort().values[12].clamp_min(1e-3)
        return [each * (bound / norm).clamp(max=1) for each in grads]

    return step
