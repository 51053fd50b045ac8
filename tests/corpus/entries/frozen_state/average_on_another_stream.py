import copy

import torch
from torch import nn


def _classifier(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 5)).to(device)


def _batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 16, device=device), torch.randint(5, (8,), device=device)


def average_on_another_stream(device):
    """The averaged weights are updated beside the next forward; their decay is on the device."""
    model = _classifier(device)
    average = copy.deepcopy(model).requires_grad_(False)
    x, y = _batch(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    updates = torch.zeros((), device=device)
    side = torch.cuda.Stream()

    def step():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            updates.add_(1)
            decay = torch.clamp((1 + updates) / (10 + updates), max=0.999)
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 1 - decay)
        accuracy = (model(x).argmax(-1) == y).float().mean()
        torch.cuda.current_stream().wait_stream(side)
        return loss.detach(), accuracy

    return step
