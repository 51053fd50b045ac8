from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def _encoder(device, out=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, out)).to(device)


def _views(device):
    return torch.randn(6, 12, device=device), torch.randn(6, 12, device=device)


# Codes of equal share, by three rounds of an iteration.
def prototypes_with_balanced_codes(device):
    model, prototypes = _encoder(device), nn.Linear(8, 5, bias=False).to(device)
    optimizer = torch.optim.SGD([*model.parameters(), *prototypes.parameters()], lr=0.1)
    x, y = _views(device)

    @torch.no_grad()
    def codes(scores, eps=0.05, rounds=3):
        q = torch.exp(scores / eps).t()
        q /= torch.sum(q)
        for _ in range(rounds):
            q /= q.sum(dim=1, keepdim=True) * q.shape[0]
            q /= q.sum(dim=0, keepdim=True) * q.shape[1]
        return (q * q.shape[1]).t()

    def step():
        with torch.no_grad():
            w = functional.normalize(prototypes.weight.data.clone(), dim=1, p=2)
            prototypes.weight.copy_(w)
        scores = [prototypes(functional.normalize(model(each), dim=1)) for each in (x, y)]
        targets = [codes(each.detach()) for each in reversed(scores)]
        loss = sum(
            -(t * functional.log_softmax(s / 0.1, 1)).sum(1).mean()
            for s, t in zip(scores, targets, strict=True)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step
