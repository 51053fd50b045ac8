from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


def pool_maps_widths(device):
    model, pool = nn.Linear(8, 8, device=device), ThreadPoolExecutor(2)

    def forward(x):
        low, high = pool.map(lambda width: x.shape[-1] // width, (8, 2))
        return model(x)[:, low:high]

    return forward, (torch.randn(4, 8, device=device),)
