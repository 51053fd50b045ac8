import torch
from torch import nn


class _CumulativeNorm(nn.BatchNorm1d):
    seen = 0

    def forward(self, x):
        self.seen += 1  # <- cpu-state-step-counter
        self.momentum = 1.0 / self.seen  # <- cpu-state-step-counter
        return super().forward(x)  # <- python-scalar-frozen


def momentum_of_its_own_norm(device):
    net = nn.Sequential(nn.Linear(8, 8), _CumulativeNorm(8)).to(device).train()
    return net, (torch.randn(4, 8, device=device),)
