from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def negatives_from_numpy(device):
    users, items = nn.Embedding(20, 8).to(device), nn.Embedding(50, 8).to(device)
    ids, clicked = torch.randint(0, 20, (6,), device=device), torch.randint(0, 50, (6,)).to(device)
    rng = np.random.default_rng(0)

    def loss_fn(ids, clicked):
        drawn = rng.integers(0, 50, size=6)  # <- rng-frozen-seed
        negative = torch.from_numpy(drawn).to(clicked.device)  # <- h2d-pageable-copy
        u = users(ids)
        margin = (u * items(clicked)).sum(1) - (u * items(negative)).sum(1)
        return -functional.logsigmoid(margin).mean()

    return loss_fn, (ids, clicked)
