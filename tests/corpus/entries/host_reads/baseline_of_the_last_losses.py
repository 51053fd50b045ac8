from __future__ import annotations

import statistics

import torch
from torch import nn


def _layer_and_input(device):
    return nn.Linear(8, 8).to(device), torch.randn(4, 8, device=device)


# The mean of the last losses is the baseline; the losses are numbers that are read each time.
def baseline_of_the_last_losses(device):
    layer, x = _layer_and_input(device)
    history = [1.0]

    def forward(x):
        baseline = statistics.fmean(history[-10:])
        loss = layer(x).square().mean() - baseline
        history.append(float(loss.detach()))  # <- cpu-state-step-counter
        return loss

    return forward, (x,)
