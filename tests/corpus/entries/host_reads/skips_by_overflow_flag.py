import torch
from torch import nn


def skips_by_overflow_flag(device):
    model = nn.Linear(8, 1, device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        if not all(each.isfinite().all() for each in grads):  # <- sync-truth-value
            return loss.detach()
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.sub_(grad, alpha=0.01)
        return loss.detach()

    return step
