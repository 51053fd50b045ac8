"""A whole training step in one graph: zero_grad, forward, backward, clipping, AdamW.

    cgtool capture samples/train_step.py:build

Look at: a step that takes no arguments is captured as it is; the optimizer must be capturable; its
multi-tensor kernels have a line too.
"""

import torch
from torch import nn


def build(device: str):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(device)
    # A tensor on the device: a scheduler fills it, and the next replay reads it.
    rate = torch.tensor(1e-3, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True, foreach=True)
    x = torch.randn(128, 64, device=device)
    target = torch.randn(128, 64, device=device)

    def train_step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        return loss

    return train_step
