from __future__ import annotations

import collections

import torch


class _Cache:
    __slots__ = ("hits", "table")

    def __init__(self):
        self.hits, self.table = collections.Counter(), {}

    def get(self, key, make):
        self.hits[key] += 1
        if key not in self.table:
            self.table[key] = make()
        return self.table[key]


def cache_in_slots(device):
    cache = _Cache()
    x = torch.randn(2, 4, device=device)

    def run(x):
        mask = cache.get(
            ("causal", x.shape[-1]), lambda: torch.tril(torch.ones(4, 4, device=x.device))
        )
        return x @ mask

    return run, (x,)
