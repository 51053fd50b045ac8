import torch
from torch import nn
from torch.nn import functional


def _problem(device, width=6):
    model = nn.Sequential(nn.Linear(width, 12), nn.Tanh(), nn.Linear(12, 1)).to(device)
    return model, torch.randn(16, width, device=device), torch.randn(16, 1, device=device)


def loss_scale_on_the_device(device):
    model, x, y = _problem(device)
    scale = torch.full((), 1024.0, device=device)
    good = torch.zeros((), dtype=torch.int32, device=device)

    def step():
        model.zero_grad(set_to_none=True)
        loss = functional.mse_loss(model(x), y)
        (loss * scale).backward()
        with torch.no_grad():
            grads = [p.grad for p in model.parameters()]
            finite = torch.stack([g.isfinite().all() for g in grads]).all()
            torch._foreach_div_(grads, scale)
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(torch.where(finite, 0.1 * g, torch.zeros_like(g)))
            good.copy_(torch.where(finite, good + 1, torch.zeros_like(good)))
            growth = 1.0 + (good % 5 == 0).float()
            scale.mul_(torch.where(finite, growth, torch.full_like(growth, 0.5))).clamp_(max=65536)
        return loss

    return step
