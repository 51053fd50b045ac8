import torch
from torch import nn


def _model(device):
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)


def tensor_rate_and_scheduler(device):
    model = _model(device)
    rate = torch.tensor(1e-2, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step.scheduler = scheduler
    return step
