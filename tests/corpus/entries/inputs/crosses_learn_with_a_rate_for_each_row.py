from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def crosses_learn_with_a_rate_for_each_row(device):
    """A whole step of DCN-v2; the embeddings use Adagrad with one sum for each row."""
    table = torch.randn(32, 8, device=device, requires_grad=True)
    crosses = nn.ModuleList([nn.Linear(24, 24) for _ in range(2)]).to(device)
    head = nn.Linear(24, 1).to(device)
    sums = torch.zeros(32, 1, device=device)
    dense = torch.optim.SGD([*crosses.parameters(), *head.parameters()], lr=0.05)
    ids = torch.randint(0, 32, (16, 3), device=device)
    clicks = torch.rand(16, device=device).round()

    def step():
        dense.zero_grad()
        table.grad = None
        first = table[ids].flatten(1)
        x = first
        for cross in crosses:
            x = first * cross(x) + x
        loss = functional.binary_cross_entropy_with_logits(head(x).squeeze(-1), clicks)
        loss.backward()
        dense.step()
        with torch.no_grad():
            sums.add_(table.grad.square().mean(1, keepdim=True))
            table.addcdiv_(table.grad, sums.sqrt().add_(1e-8), value=-0.1)
        return loss.detach()

    return step
