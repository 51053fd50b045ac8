import math

import torch
from torch import nn
from torch.nn import functional


def position_embedding_is_resampled(device):
    table = nn.Parameter(torch.randn(1, 17, 8, device=device))

    def embed(patches):
        side = int(math.sqrt(patches.shape[1]))
        old = math.isqrt(table.shape[1] - 1)
        prefix, grid = table[:, :1], table[:, 1:].reshape(1, old, old, -1).permute(0, 3, 1, 2)
        grid = functional.interpolate(grid, size=(side, side), mode="bilinear", antialias=True)
        grid = grid.permute(0, 2, 3, 1).flatten(1, 2)
        return torch.cat([prefix.expand(len(patches), -1, -1), patches + grid], 1)

    return embed, (torch.randn(2, 36, 8, device=device),)
