import itertools

import torch
from torch import nn


def calibration_error_of_filled_bins(device):
    head = nn.Linear(12, 5).to(device).requires_grad_(False)
    x, labels = torch.randn(64, 12, device=device), torch.randint(5, (64,), device=device)
    bounds = torch.linspace(0, 1, 16, device=device)

    def error(x, labels):
        confidence, prediction = head(x).softmax(1).max(1)
        hits = prediction.eq(labels).float()
        total = torch.zeros(1, device=x.device)
        for low, high in itertools.pairwise(bounds):
            inside = confidence.gt(low) & confidence.le(high)
            share = inside.float().mean()
            if share > 0:  # <- sync-truth-value
                accuracy = (hits * inside).sum() / inside.sum()
                mean = (confidence * inside).sum() / inside.sum()
                total += (mean - accuracy).abs() * share
        return total

    return error, (x, labels)
