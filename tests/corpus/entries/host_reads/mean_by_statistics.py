import statistics

import torch


def mean_by_statistics(device):
    def f(a, b):
        losses = [(a - b).abs().mean(), (a - b).square().mean()]
        level = statistics.fmean(losses)  # <- sync-item
        return sum(losses) * level

    return f, (torch.randn(8, device=device), torch.randn(8, device=device))
