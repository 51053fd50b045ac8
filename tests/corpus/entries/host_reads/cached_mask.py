import functools

import torch


@functools.lru_cache(maxsize=8)
def causal_mask(length, device):
    return torch.ones(length, length, dtype=torch.bool, device=device).tril_()


def cached_mask(device):
    def attend(x):
        scores = x @ x.mT / x.shape[-1] ** 0.5
        return scores.masked_fill(~causal_mask(x.shape[1], x.device), -torch.inf).softmax(-1) @ x

    return attend, (torch.randn(2, 5, 8, device=device),)
