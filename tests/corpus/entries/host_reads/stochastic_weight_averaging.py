from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as fn
from torch.optim.swa_utils import AveragedModel


def stochastic_weight_averaging(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1)).to(device)
    averaged = AveragedModel(model, device=device)
    rate = torch.tensor(1e-3, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
    x = torch.randn(32, 16, device=device)
    y = torch.randn(32, 1, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = fn.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)  # <- hidden-sync-in-stock-module
        return loss.detach()

    return step
