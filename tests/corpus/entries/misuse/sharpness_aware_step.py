import torch
from torch import nn
from torch.nn import functional


def sharpness_aware_step(device):
    model = nn.Linear(4, 1, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    x, y = torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)

    def step():
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        grads = [p.grad.clone() for p in model.parameters()]
        norm = torch.stack([g.norm() for g in grads]).norm() + 1e-12
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.add_(g * (0.05 / norm))
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(g * (0.05 / norm))
        optimizer.step()
        return loss.detach()

    return step
