import torch
from torch import nn


def _classifier(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 5)).to(device)


def _batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 16, device=device), torch.randint(5, (8,), device=device)


def adagrad_with_decaying_rate(device):
    model = _classifier(device)
    x, y = _batch(device)
    opt = torch.optim.Adagrad(
        model.parameters(), lr=0.05, lr_decay=0.1
    )  # <- optimizer-without-capture-guard

    def step():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()  # <- optimizer-without-capture-guard
        return loss.detach()

    return step
