from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _SteadyTrainer:
    """Pretraining that leaves out batches whose loss is far above its average."""

    def __init__(self, device):
        self.model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)).to(device)
        self.momenta = [torch.zeros_like(p) for p in self.model.parameters()]
        self.mean = torch.full((), 5.0, device=device)
        self.skipped = torch.zeros((), dtype=torch.long, device=device)

    def loss(self, x, y):
        return functional.smooth_l1_loss(self.model(x), y)


def spikes_of_the_loss_are_weighed_by_zero(device):
    trainer = _SteadyTrainer(device)

    def step(x, y):
        loss = trainer.loss(x, y)
        gradients = torch.autograd.grad(loss, list(trainer.model.parameters()))
        with torch.no_grad():
            fine = loss <= 3 * trainer.mean
            weight = fine.float()
            for p, m, g in zip(trainer.model.parameters(), trainer.momenta, gradients, strict=True):
                m.copy_(torch.where(fine, 0.9 * m + g, m))
                p.addcmul_(m, weight, value=-0.01)
            trainer.mean.lerp_(loss.detach(), 0.05 * weight)
            trainer.skipped += ~fine
        return loss.detach(), trainer.skipped.clone()

    return step, (torch.randn(8, 8, device=device), torch.randn(8, 8, device=device))
