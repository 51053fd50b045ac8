import torch
from torch import nn


def _model(device):
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)


def lbfgs(device):
    model = _model(device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(16, 8, device=device)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    def step():
        return optimizer.step(closure)  # <- metadata-address-changed

    return step
