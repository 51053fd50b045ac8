import bisect

import torch


def bucket_by_bisection(device):
    edges = [0.1, 0.2, 0.4, 0.8]

    def f(x):
        bucket = bisect.bisect_left(edges, x.abs().mean())  # <- sync-truth-value
        return x * 2.0**bucket

    return f, (torch.randn(8, device=device),)
