import functools

import torch
from torch.nn import functional


@functools.cache
def alibi(heads, length, device):
    slopes = torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)]).to(
        device
    )  # <- h2d-pageable-copy
    return slopes[:, None, None] * torch.arange(length, device=device)


def alibi_growing_length(device):
    state = {"length": 4}
    q = torch.randn(4, 1, 8, device=device)

    @torch.no_grad()
    def score(keys):
        state["length"] += 1  # <- cpu-state-step-counter
        bias = alibi(4, state["length"], q.device)  # <- cpu-state-step-counter
        padded = functional.pad(
            bias, (0, keys.shape[1] - bias.shape[-1]), value=-1e9
        )  # <- cpu-state-step-counter
        return (q @ keys.transpose(1, 2) + padded).softmax(-1)

    return score, (torch.randn(4, 128, 8, device=device),)
