import torch
from torch import nn


def calibration_error_by_bucketize(device):
    head = nn.Linear(12, 5).to(device).requires_grad_(False)
    x, labels = torch.randn(64, 12, device=device), torch.randint(5, (64,), device=device)
    bounds = torch.linspace(0, 1, 16, device=device)[1:-1].contiguous()

    def error(x, labels):
        confidence, prediction = head(x).softmax(1).max(1)
        hits = prediction.eq(labels).float()
        where = torch.bucketize(confidence, bounds)
        sums = torch.zeros(3, 15, device=x.device)
        sums[0].index_add_(0, where, torch.ones_like(confidence))
        sums[1].index_add_(0, where, confidence)
        sums[2].index_add_(0, where, hits)
        return (sums[1] - sums[2]).abs().sum() / len(x)

    return error, (x, labels)
