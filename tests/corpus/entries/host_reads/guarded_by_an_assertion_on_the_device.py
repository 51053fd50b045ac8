import torch
from torch import nn


def _model(device, dropout=0.0):
    layers = nn.Linear(10, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 3)
    return nn.Sequential(*layers).to(device)


def _batch(device):
    return torch.randn(8, 10, device=device), torch.randint(3, (8,), device=device)


def guarded_by_an_assertion_on_the_device(device):
    """A kernel asserts that the loss is finite; gradients that are not are cleaned in place."""
    model = _model(device)
    x, y = _batch(device)
    params = list(model.parameters())

    def step():
        loss = nn.functional.cross_entropy(model(x), y)
        torch._assert_async(torch.isfinite(loss))
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            total = nn.utils.get_total_norm(grads)
            for p, g in zip(params, grads, strict=True):
                g = torch.nan_to_num_(g, nan=0.0, posinf=0.0, neginf=0.0)
                p.sub_(g * (1.0 / (total + 1e-6)).clamp(max=1.0), alpha=0.1)
        return loss.detach()

    return step
