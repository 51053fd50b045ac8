import math

import torch
from torch import nn


class CalibratedLinear(nn.Module):
    """Collects the Hessian of its inputs while calibration batches pass, as GPTQ does."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        width = layer.in_features
        self.register_buffer("hessian", torch.zeros(width, width))
        self.samples = 0

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        added = rows.shape[0]
        self.hessian *= self.samples / (self.samples + added)  # <- cpu-state-step-counter
        self.samples += added  # <- cpu-state-step-counter
        rows = math.sqrt(2 / self.samples) * rows  # <- cpu-state-step-counter
        self.hessian += rows.T @ rows
        return self.layer(x)


def hessian_of_calibration_batches(device):
    torch.manual_seed(0)
    model = nn.Sequential(
        CalibratedLinear(nn.Linear(16, 32)), nn.ReLU(), CalibratedLinear(nn.Linear(32, 8))
    ).to(device)
    batch = torch.randn(4, 10, 16, device=device)

    @torch.no_grad()
    def calibrate(batch):
        return model(batch)

    return calibrate, (batch,)
