import functools
import itertools

import torch


def every(n):
    def decorate(function):
        calls, last = itertools.count(), []

        @functools.wraps(function)
        def wrapper(*args):
            if next(calls) % n == 0 or not last:  # <- control-flow-frozen
                last[:] = [function(*args)]
            return last[0]

        return wrapper

    return decorate


def decorator_computes_every_other_time(device):
    statistics = torch.zeros(8, device=device)

    @every(2)
    def spectral(x):
        return x.abs().mean(0)

    @torch.no_grad()
    def forward(x):
        statistics.add_(spectral(x))
        return x - statistics

    return forward, (torch.randn(4, 8, device=device),)
