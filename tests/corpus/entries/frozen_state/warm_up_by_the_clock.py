import time

import torch


def rows(device, *shape):
    return torch.ones(*(shape or (4, 8)), device=device)


def warm_up_by_the_clock(device):
    begun = time.time()

    def scale(x):
        weight = min(1.0, (time.time() - begun) // 3600)  # <- cpu-work-in-region
        return x * weight

    return scale, (rows(device),)
