from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


# A self-paced curriculum that lives in a tensor.
class Pace:
    """A threshold that grows on the device; `value` is a property, not a number."""

    def __init__(self, start, factor, device):
        self._threshold = torch.full((), start, device=device)
        self.factor = factor

    @property
    def value(self):
        return self._threshold

    @value.setter
    def value(self, new):
        self._threshold.copy_(new)


def self_paced_learning(device):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=torch.tensor(0.01, device=device), capturable=True
    )
    pace = Pace(0.4, 1.02, device)
    x = torch.randn(64, 4, device=device)
    y = (x[:, 0] > 0).long()

    def step():
        optimizer.zero_grad(set_to_none=False)
        losses = functional.cross_entropy(model(x), y, reduction="none")
        easy = (losses.detach() < pace.value).float()
        loss = (losses * easy).sum() / easy.sum().clamp(min=1.0)
        loss.backward()
        optimizer.step()
        pace.value = pace.value * pace.factor
        return loss.detach(), easy.sum()

    return step
