import threading

import torch


def rows(device, *shape):
    return torch.ones(*(shape or (4, 8)), device=device)


def depth_of_a_thread(device):
    kept = threading.local()
    kept.depth, kept.calls = 0, 0

    def run(x):
        kept.depth += 1
        kept.calls += 1
        y = x * (1.0 / kept.depth)
        kept.depth -= 1
        return y

    return run, (rows(device),)
