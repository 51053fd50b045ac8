"""A small MLP regression, forward and backward: the first thing to point cgtool at.

    cgtool capture samples/mlp.py:build

Look at: the two kernels of each Linear in backward (one gradient for the input, one for the
weight), and how many nodes a plain training loss costs.
"""

import torch
from torch import nn


class Regression(nn.Module):
    """Three layers and the loss, so that backward starts from a scalar."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.layers(x), target)


def build(device: str):
    torch.manual_seed(0)
    model = Regression().to(device)
    return model, (torch.randn(128, 64, device=device), torch.randn(128, 1, device=device))
