import random
from concurrent.futures import ThreadPoolExecutor

import torch

generator = random.Random(3)


def rows(device, *shape):
    return torch.ones(*(shape or (4, 8)), device=device)


def drawn_by_a_pool(device):
    pool = ThreadPoolExecutor(1)

    def scale(x):
        rare = pool.submit(generator.random).result() < 0.001  # <- rng-frozen-seed
        return x * (2.0 if rare else 1.0)

    return scale, (rows(device),)
