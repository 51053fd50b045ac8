from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpointed_blocks(device: str) -> Callable[[], torch.Tensor]:
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2)
    ).to(device)
    weights = list(blocks.parameters())
    x = torch.randn(8, 16, device=device)

    def step() -> torch.Tensor:
        blocks.zero_grad(set_to_none=True)
        h = x
        for block in blocks:
            h = h + checkpoint(block, h, use_reentrant=False, preserve_rng_state=False)
        loss = h.square().mean()
        loss.backward()
        with torch.no_grad():
            torch._foreach_add_(weights, [p.grad for p in weights], alpha=-0.1)
        return loss.detach()

    return step
